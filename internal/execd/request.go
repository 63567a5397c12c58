package execd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"agent-sandbox/internal/sys"
)

// requestsWaiting is how many requests of one uid may wait.
const requestsWaiting = 64

// A job is a request that was checked, or the wish to read the uid's lists again
// or to forget its sandbox if it is empty.
type job struct {
	reloaded func() // of a wish to read the lists: called when that was done
	forget   bool
	name     string
	pid      int
	pidfd    *os.File
	who      identity
	cgroup   string // in which it asked
	inside   bool   // that is the uid's sandbox
}

// listen takes requests until the watch fails.
func (d *Daemon) listen(w *sys.CreateWatch) error {
	for {
		events, err := w.Read()
		if err != nil {
			return err
		}
		for _, e := range events {
			switch {
			case e.Overflow:
				// Who made what lies there is not known any more.
				if err := d.folder.sweep(); err != nil {
					return err
				}
			case e.Gone:
				return errors.New("the request folder was removed: starting again makes it anew")
			default:
				d.request(e)
			}
		}
	}
}

// request checks who made an entry of the request folder and passes the request
// on. Everything in the entry's name, type and owner is the user's choice; the
// process is the kernel's word.
func (d *Daemon) request(e sys.Created) {
	j, err := d.check(e)
	if err == nil && d.queues.Submit(j.who.uid, j) {
		return
	}
	if e.Pidfd != nil {
		e.Pidfd.Close()
	}
	var refusal *refused
	if errors.As(err, &refusal) {
		d.refuse(j, refusal.Error())
		return
	}
	d.folder.remove(e.Name)
}

// refused is an error that is told to the user who asks.
type refused struct{ reason string }

func (r *refused) Error() string { return r.reason }

var errNoRequest = errors.New("no request")

func (d *Daemon) check(e sys.Created) (job, error) {
	j := job{name: e.Name, pid: e.PID, pidfd: e.Pidfd}
	if e.Pidfd == nil || e.PID <= 0 || !requestName(e.Name) {
		return j, errNoRequest
	}
	st, err := sys.StatAt(d.folder.req, e.Name)
	if err != nil || !st.IsRegular() || st.Nlink != 1 {
		return j, errNoRequest
	}
	var uid uint32
	if uid, j.who, err = readIdentity(e.PID); err != nil {
		return j, errNoRequest
	}
	j.cgroup, err = cgroupOf(e.PID)
	// What was read under the number is the creator's only if he lives still.
	if err != nil || sys.PidfdDead(e.Pidfd) || uid != st.UID {
		return j, errNoRequest
	}
	own := boxPath(uid)
	j.inside = j.cgroup == own || strings.HasPrefix(j.cgroup, own+"/")
	if !j.inside && strings.HasPrefix(j.cgroup, "/"+parentName+"/") {
		return j, &refused{"already in the sandbox of another user"}
	}
	return j, nil
}

// readIdentity returns the real uid of a process, and whom its lists are read as:
// its own real ids and its supplementary groups (/proc/PID/status).
func readIdentity(pid int) (uint32, identity, error) {
	var who identity
	data, err := sys.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, who, err
	}
	ids := map[string][]uint32{}
	for line := range strings.SplitSeq(string(data), "\n") {
		key, value, _ := strings.Cut(line, ":")
		if key != "Uid" && key != "Gid" && key != "Groups" {
			continue
		}
		ids[key] = []uint32{}
		for _, f := range strings.Fields(value) {
			n, err := strconv.ParseUint(f, 10, 32)
			if err != nil {
				return 0, who, err
			}
			ids[key] = append(ids[key], uint32(n))
		}
	}
	if len(ids["Uid"]) != 4 || len(ids["Gid"]) != 4 || ids["Groups"] == nil {
		return 0, who, fmt.Errorf("/proc/%d/status is not of the documented form", pid)
	}
	who = identity{ids["Uid"][0], ids["Gid"][0], groupsString(ids["Groups"])}
	return who.uid, who, nil
}

// refuse tells the user why.
func (d *Daemon) refuse(j job, reason string) {
	d.tell(j, "refused: "+reason, nil)
	d.complain(j.who.uid, reason)
}

func (d *Daemon) tell(j job, line string, warnings []byte) {
	if err := d.folder.answer(j.name, j.who.uid, line, warnings); err != nil {
		d.log.Errorf("cannot write an answer for uid %d: %w", j.who.uid, err)
	}
}

// complain logs a refusal, at most one a second and uid: a user may not drown
// the log.
func (d *Daemon) complain(uid uint32, reason string) {
	now := time.Now()
	d.mu.Lock()
	quiet := now.Sub(d.complained[uid]) < time.Second
	if !quiet {
		if len(d.complained) > 1024 {
			clear(d.complained)
		}
		d.complained[uid] = now
	}
	d.mu.Unlock()
	if !quiet {
		d.log.Errorf("launch of uid %d refused: %s", uid, reason)
	}
}
