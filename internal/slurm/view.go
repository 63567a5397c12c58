package slurm

import (
	"crypto/rand"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// mine says that a list of users, names or numbers, has the session's own.
func (c *call) mine(users string) bool {
	list := strings.Split(users, ",")
	return slices.Contains(list, c.s.User) || slices.Contains(list, strconv.Itoa(c.s.UID))
}

// choose takes the flags that say which jobs are meant, --user, --me and --jobs,
// and returns what is asked for and in scope. all says that no job was named.
func (c *call) choose(flags *set, sc *scope) (in, out []string, all bool) {
	users, given := flags.take("user")
	flags.drop("me")
	named, _ := flags.take("jobs")
	if given && !c.mine(users) {
		sc = &scope{}
	}
	if named == "" {
		return sc.list, nil, true
	}
	in, out = sc.pick(splitJobs(named))
	return in, out, false
}

// ask has the real command show jobs that are all in scope: named one by one,
// and of no other user. Where there are none it shows its header alone.
func (c *call) ask(flags *set, jobs []string) (stdout, stderr string, exit int) {
	uid := strconv.Itoa(c.s.UID)
	flags.put("user", &uid)
	if len(jobs) == 0 {
		nobody := "none-" + rand.Text()
		flags.drop("steps")
		flags.put("name", &nobody)
	} else {
		list := strings.Join(jobs, ",")
		flags.put("jobs", &list)
	}
	return c.output(c.r.Command, flags.args()...)
}

// show writes what a real command said.
func (c *call) show(stdout, stderr string, exit int) int {
	io.WriteString(c.stdout, stdout)
	io.WriteString(c.stderr, stderr)
	return exit
}

// unknown is what Slurm's commands say of a job that there is not: others' jobs
// are none, so that nobody learns which numbers they have.
func (c *call) unknown(text string) int {
	io.WriteString(c.stderr, text)
	c.log("info", "%s: not in scope", c.r.Command) // what: see the request
	return 1
}

// unknowns says it of each of these, of which there may be none.
func (c *call) unknowns(before string, jobs []string, after string) {
	if len(jobs) > 0 {
		c.unknown(before + strings.Join(jobs, after+before) + after)
	}
}

func quoted(words []string) []string {
	out := slices.Clone(words)
	for i, w := range out {
		out[i] = quote(w)
	}
	return out
}

func (c *call) squeue() int {
	flags, done, exit := c.flagsOnly()
	if done {
		return exit
	}
	sc, err := c.scope()
	if err != nil {
		return c.fail(err, 1)
	}
	jobs, out, all := c.choose(flags, sc)
	if len(jobs) == 0 && len(out) == 1 && !all {
		return c.unknown("slurm_load_jobs error: Invalid job id specified\n")
	}
	if flags.has("steps") {
		if v := flags.get("steps"); v != "" {
			steps, _ := sc.pick(splitJobs(v))
			list := strings.Join(steps, ",")
			flags.put("steps", &list)
			if len(steps) == 0 {
				jobs = nil
			}
		}
		if len(jobs) == 0 {
			// Without jobs there are no steps; squeue would show every job's.
			if !flags.has("noheader") {
				io.WriteString(c.stdout, "         STEPID     NAME PARTITION     USER      TIME NODELIST\n")
			}
			return 0
		}
	}
	if f, ok := flags.values["format"]; ok {
		marked := markComments(*f)
		flags.put("format", &marked)
	}
	c.log("info", "squeue %q", flags.args())
	stdout, stderr, exit := c.ask(flags, jobs)
	return c.show(showComments(stdout), stderr, exit)
}

func (c *call) sprio() int {
	flags, done, exit := c.flagsOnly()
	if done {
		return exit
	}
	if flags.has("weights") {
		flags.drop("user")
		flags.drop("jobs")
		return c.run(command{name: "sprio", args: flags.args(), stdout: c.stdout, stderr: c.stderr})
	}
	sc, err := c.scope()
	if err != nil {
		return c.fail(err, 1)
	}
	jobs, _, _ := c.choose(flags, sc)
	if len(jobs) == 0 {
		// sprio has no flag that leaves it with nothing to show.
		return c.unknown("Unable to find jobs matching user/id(s) specified\n")
	}
	return c.show(c.ask(flags, jobs))
}

func (c *call) sstat() int {
	flags, done, exit := c.flagsOnly()
	if done {
		return exit
	}
	if flags.has("helpformat") {
		return c.run(command{name: "sstat", args: []string{"--helpformat"}, stdout: c.stdout, stderr: c.stderr})
	}
	sc, err := c.scope()
	if err != nil {
		return c.fail(err, 1)
	}
	named, _ := flags.take("jobs")
	jobs, out := sc.pick(splitJobs(named))
	c.unknowns("sstat: error: couldn't get steps for job ", out, "\n")
	if len(jobs) == 0 {
		if named == "" {
			return c.fail(refuse("sstat --jobs=ID", "You didn't give me any jobs to stat."), 1)
		}
		return 0
	}
	list := strings.Join(jobs, ",")
	flags.put("jobs", &list)
	return c.show(c.output("sstat", flags.args()...))
}

func (c *call) sacct() int {
	flags, done, exit := c.flagsOnly()
	if done {
		return exit
	}
	if flags.has("helpformat") {
		return c.run(command{name: "sacct", args: []string{"--helpformat"}, stdout: c.stdout, stderr: c.stderr})
	}
	uid := strconv.Itoa(c.s.UID)
	// Which jobs: those that the accounting knows in the same time, by their tags.
	query := []string{"--user=" + uid, "--allocations", "--noheader", "--parsable2", "--delimiter=" + closeMark, "--format=JobID,JobIDRaw,UID,Comment"}
	for _, n := range []string{"starttime", "endtime"} {
		if v, ok := flags.values[n]; ok {
			query = append(query, "--"+n+"="+*v)
		}
	}
	users, given := flags.take("user")
	named, asked := flags.take("jobs")
	if asked && !flags.has("starttime") {
		query = append(query, "--starttime=1970-01-01") // as sacct has it where jobs are named
	}
	stdout, stderr, exit := c.output("sacct", query...)
	if exit != 0 {
		return c.show("", stderr, exit)
	}
	sc := &scope{jobs: map[string]scoped{}}
	if c.s.Scope != "none" && (!given || c.mine(users)) {
		for _, line := range strings.Split(stdout, "\n") {
			f := strings.SplitN(line, closeMark, 4)
			if len(f) < 4 || f[2] != uid {
				continue
			}
			tag := tagRE.FindStringSubmatch(f[3])
			tagged := tag != nil && tag[0] == f[3] && tag[2] == digest(c.s.Project)
			if c.s.Scope == "user" || tagged && (c.s.Scope == "project" || tag[1] == c.s.ID) {
				base := regexp.MustCompile(`\A[0-9]+`).FindString(f[0])
				if base == "" || !jobNumber.MatchString(f[1]) {
					continue
				}
				if _, ok := sc.jobs[base]; !ok {
					sc.list = append(sc.list, base)
				}
				sc.jobs[base], sc.jobs[f[1]] = scoped{}, scoped{}
			}
		}
	}
	jobs := sc.list
	if asked {
		jobs, _ = sc.pick(splitJobs(named))
	}
	if len(jobs) == 0 {
		jobs = []string{"4294967294"} // NO_VAL: the number of no job
	}
	list := strings.Join(jobs, ",")
	flags.put("user", &uid)
	flags.put("jobs", &list)
	c.log("info", "sacct %q", flags.args())
	stdout, stderr, exit = c.output("sacct", flags.args()...)
	return c.show(untag(stdout, ""), stderr, exit)
}

func (c *call) sinfo() int {
	flags, done, exit := c.flagsOnly()
	if done {
		return exit
	}
	if flags.has("list-reasons") && !flags.has("format") && !flags.has("Format") {
		f := "%20E %19H %N" // sinfo's own, without the user who gave the reason
		flags.put("format", &f)
	}
	return c.run(command{name: "sinfo", args: flags.args(), stdout: c.stdout, stderr: c.stderr})
}

func (c *call) sshare() int {
	flags, done, exit := c.flagsOnly()
	if done {
		return exit
	}
	flags.put("Users", nil)
	flags.put("users", &c.s.User)
	return c.run(command{name: "sshare", args: flags.args(), stdout: c.stdout, stderr: c.stderr})
}

// byUser begins the part of sdiag's output that names users.
const byUser = "Remote Procedure Call statistics by user"

func (c *call) sdiag() int {
	flags, done, exit := c.flagsOnly()
	if done {
		return exit
	}
	stdout, stderr, exit := c.output("sdiag", flags.args()...)
	// What comes after it names users as well, in some versions.
	stdout, _, _ = strings.Cut(stdout, byUser)
	return c.show(stdout, stderr, exit)
}
