package slurm

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A scope is the jobs that a session may see and act on, as Slurm has them now.
type scope struct {
	// jobs by the number a client may name them by: a job's own, and of an array
	// that of the array.
	jobs map[string]scoped
	// list names each once, arrays as a whole, in the order of their numbers.
	list []string
}

// A scoped job.
type scoped struct {
	// Of the tag that it carries, empty for a job without one.
	session, project string
	// live says that it has not ended; of an array, that not all of it has.
	live bool
}

// Between these squeue writes one job's line: a comment of a job from outside may
// hold anything, line ends too.
const (
	openMark  = "\x1e"
	closeMark = "\x1f"
)

var queueLine = regexp.MustCompile(`\x1e([0-9]+) ([0-9]+) ([0-9]+) ([A-Z_]+) ([^\x1e\x1f]*)\x1f`)

// ended are the states of jobs that have ended (job_states of slurm.h), those among
// them whose processes have not, too: scancel(1) with a filter leaves them out.
var ended = []string{"BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "STAGE_OUT", "TIMEOUT"}

// scope asks Slurm for the user's jobs and keeps those in scope.
func (c *call) scope() (*scope, error) {
	sc := &scope{jobs: map[string]scoped{}}
	if c.s.Scope == "none" {
		return sc, nil
	}
	uid := strconv.Itoa(c.s.UID)
	out, errs, exit := c.output("squeue", "--user="+uid, "--states=all", "--noheader", "--format="+openMark+"%A %F %U %T %k"+closeMark)
	if exit != 0 {
		return nil, errors.New(strings.TrimSpace("cannot ask Slurm for this sandbox's jobs: " + errs))
	}
	project := digest(c.s.Project)
	for _, m := range queueLine.FindAllStringSubmatch(out, -1) {
		// squeue was asked for no other's; a job that is, is not the user's to see.
		if m[3] != uid {
			continue
		}
		var job scoped
		tag := tagRE.FindStringSubmatch(m[5])
		if tag != nil && tag[0] == m[5] {
			job.session, job.project = tag[1], tag[2]
		} else {
			tag = nil
		}
		switch c.s.Scope {
		case "session":
			if tag == nil || tag[1] != c.s.ID || tag[2] != project {
				continue
			}
		case "project":
			if tag == nil || tag[2] != project {
				continue
			}
		case "user":
		default:
			return nil, fmt.Errorf("SLURM_SCOPE is %s: want session, project, user or none", quote(c.s.Scope))
		}
		if _, ok := sc.jobs[m[2]]; !ok {
			sc.list = append(sc.list, m[2])
		}
		job.live = !slices.Contains(ended, m[4])
		sc.jobs[m[1]] = job
		job.live = job.live || sc.jobs[m[2]].live
		sc.jobs[m[2]] = job
	}
	slices.SortFunc(sc.list, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return sc, nil
}

// jobNumber is a plain job id.
var jobNumber = regexp.MustCompile(`\A[0-9]{1,10}\z`)

// jobSpec is how a job, an array, elements of it, a part of a heterogeneous job
// or a step of one are named.
var jobSpec = regexp.MustCompile(`\A([0-9]{1,10})(_([0-9]{1,10}|\*|\[[0-9,:%-]+\]))?(\+[0-9]{1,4})?(\.([0-9]{1,10}|batch|extern|interactive))?\z`)

// splitJobs takes a list of job specifications apart: a comma within brackets
// is part of one.
func splitJobs(list string) []string {
	var out []string
	depth, from := 0, 0
	for i := range len(list) {
		switch list[i] {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, list[from:i])
				from = i + 1
			}
		}
	}
	return append(out, list[from:])
}

// pick sorts job specifications into those in scope and those that are not:
// others', unknown ones, and words that name no job.
func (sc *scope) pick(specs []string) (in, out []string) {
	for _, s := range specs {
		if s == "" {
			continue
		}
		m := jobSpec.FindStringSubmatch(s)
		if m == nil {
			out = append(out, s)
			continue
		}
		// 007 is job 7 for Slurm.
		num := strings.TrimLeft(m[1], "0")
		if _, ok := sc.jobs[num]; ok {
			in = append(in, num+s[len(m[1]):])
		} else {
			out = append(out, s)
		}
	}
	return in, out
}
