package execd

import (
	"sync"
	"sync/atomic"
	"testing"
)

func TestQueuesKeepOrderAndNeverRunAUidTwice(t *testing.T) {
	const uids, each = 8, 500
	var running [uids]atomic.Int32
	var mu sync.Mutex
	got := map[uint32][]int{}
	q := NewQueues(each, func(uid uint32, jobs []int) {
		if running[uid].Add(1) != 1 {
			t.Error("two workers of one uid")
		}
		mu.Lock()
		got[uid] = append(got[uid], jobs...)
		mu.Unlock()
		running[uid].Add(-1)
	})
	var wg sync.WaitGroup
	for uid := range uint32(uids) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range each {
				if !q.Submit(uid, i) {
					t.Error("refused within the limit")
				}
			}
		}()
	}
	wg.Wait()
	q.Wait()
	for uid := range uint32(uids) {
		if len(got[uid]) != each {
			t.Fatalf("uid %d: %d jobs", uid, len(got[uid]))
		}
		for i, j := range got[uid] {
			if i != j {
				t.Fatalf("uid %d: job %d at place %d", uid, j, i)
			}
		}
	}
	if len(q.waiting) != 0 {
		t.Errorf("queues of %d uids stay", len(q.waiting))
	}
}

func TestAHangingUidHoldsUpNoOther(t *testing.T) {
	hang, done := make(chan bool), make(chan bool)
	q := NewQueues(2, func(uid uint32, _ []int) {
		if uid == 1 {
			<-hang
		} else {
			done <- true
		}
	})
	q.Submit(1, 0)
	for q.Submit(1, 0) { // until its queue is full: Submit does not wait either
	}
	q.Submit(2, 0)
	<-done
	close(hang)
	q.Wait()
}
