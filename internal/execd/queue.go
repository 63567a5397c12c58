package execd

import "sync"

// Queues has one queue of jobs a uid, so that no uid waits for another's jobs.
// What has piled up while a uid's jobs were worked on is handed over in one go:
// a list is read once for all of them.
type Queues[J any] struct {
	limit  int // jobs of one uid that may wait
	handle func(uid uint32, jobs []J)

	mu      sync.Mutex
	waiting map[uint32][]J // has an entry, perhaps empty, while a worker of the uid runs
	wg      sync.WaitGroup
}

// NewQueues returns queues whose jobs go to handle, which is never called for
// one uid twice at the same time.
func NewQueues[J any](limit int, handle func(uid uint32, jobs []J)) *Queues[J] {
	return &Queues[J]{limit: limit, handle: handle, waiting: map[uint32][]J{}}
}

// Submit appends a job and never waits; it is false where the uid has too many
// waiting already.
func (q *Queues[J]) Submit(uid uint32, job J) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	jobs, running := q.waiting[uid]
	if len(jobs) >= q.limit {
		return false
	}
	q.waiting[uid] = append(jobs, job)
	if !running {
		q.wg.Add(1)
		go q.work(uid)
	}
	return true
}

func (q *Queues[J]) work(uid uint32) {
	defer q.wg.Done()
	for {
		q.mu.Lock()
		jobs := q.waiting[uid]
		if len(jobs) == 0 {
			delete(q.waiting, uid)
			q.mu.Unlock()
			return
		}
		q.waiting[uid] = nil
		q.mu.Unlock()
		q.handle(uid, jobs)
	}
}

// Wait returns when no job waits or runs.
func (q *Queues[J]) Wait() { q.wg.Wait() }
