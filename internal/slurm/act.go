package slurm

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

func (c *call) scancel() int {
	flags, rest, done, exit := c.parse(false)
	if done {
		return exit
	}
	var specs []string
	for _, w := range rest {
		specs = append(specs, splitJobs(w)...)
	}
	filters := false
	for _, n := range []string{"me", "name", "nodelist", "partition", "qos", "reservation", "state", "user"} {
		filters = filters || flags.has(n)
	}
	if len(specs) == 0 && !filters {
		return c.fail(refuse("scancel ID, or scancel --user="+c.s.User+" for all of this sandbox's jobs", "No job identification provided"), 1)
	}
	sc, err := c.scope()
	if err != nil {
		return c.fail(err, 1)
	}
	if users, given := flags.take("user"); given && users != c.s.User && users != fmt.Sprint(c.s.UID) {
		sc = &scope{}
	}
	flags.drop("me")
	var jobs, out []string
	if len(specs) > 0 {
		jobs, out = sc.pick(specs)
	} else {
		// Slurm complains of jobs that have ended where they are named, which the
		// client has not done.
		jobs = slices.DeleteFunc(sc.list, func(j string) bool { return !sc.jobs[j].live })
	}
	// Slurm says nothing of a number that is no job's, and neither 1.
	if !flags.has("quiet") {
		c.unknowns("scancel: no job ", quoted(out), " of this sandbox\n")
	}
	if len(jobs) == 0 {
		return 0
	}
	c.log("info", "scancel %q", append(flags.args(), jobs...))
	return c.run(command{name: "scancel", args: append(append(flags.args(), "--"), jobs...), stdout: c.stdout, stderr: c.stderr})
}

func (c *call) scontrol() int {
	flags, rest, done, exit := c.parse(true)
	if done {
		return exit
	}
	if len(rest) == 0 {
		return c.fail(refuse("scontrol show job ID", "scontrol asks for its commands only on a terminal outside"), 1)
	}
	words := rest[1:]
	switch key := strings.ToLower(rest[0]); key {
	case "show":
		return c.scontrolShow(flags, words)
	case "hold", "uhold", "release", "requeue", "requeuehold":
		return c.scontrolJobs(flags, key, words)
	case "update":
		return c.scontrolUpdate(flags, words)
	case "ping", "version", "help":
		if len(words) == 0 {
			return c.run(command{name: "scontrol", args: append(flags.args(), key), stdout: c.stdout, stderr: c.stderr})
		}
		return c.fail(fmt.Errorf("too many arguments for keyword:%s", key), 1)
	}
	return c.fail(refuse("show, hold, uhold, release, requeue, requeuehold, update, ping and version can be used, in full", "scontrol %s is not allowed in the sandbox", quote(rest[0])), 1)
}

func (c *call) scontrolShow(flags *set, words []string) int {
	if len(words) == 0 || len(words) > 2 {
		return c.fail(refuse("scontrol show job ID", "show takes what to show, and its name"), 1)
	}
	what, id := strings.ToLower(words[0]), ""
	if len(words) == 2 {
		id = words[1]
	} else if n, v, ok := strings.Cut(words[0], "="); ok {
		what, id = strings.ToLower(n), v
	}
	switch what {
	case "job", "jobs", "jobid":
		return c.scontrolShowJobs(flags, id)
	case "node", "nodes", "nodename", "partition", "partitions", "partitionname", "hostname", "hostnames", "hostlist", "hostlistsorted":
		if id != "" {
			if err := hosts(id); err != nil {
				return c.fail(err, 1)
			}
		}
		args := append(flags.args(), "show", what)
		if id != "" {
			args = append(args, id)
		} else if strings.HasPrefix(what, "host") {
			return c.fail(refuse("scontrol show hostnames \"$SLURM_JOB_NODELIST\"", "show %s needs a list of nodes", what), 1)
		}
		stdout, stderr, exit := c.output("scontrol", args...)
		if !strings.HasPrefix(what, "host") {
			stdout = othersRE.ReplaceAllString(stdout, "$1=N/A")
			stdout = reasonRE.ReplaceAllString(stdout, "")
		}
		return c.show(stdout, stderr, exit)
	}
	return c.fail(refuse("job, node, partition, hostnames and hostlist can be shown", "scontrol show %s is not allowed in the sandbox", quote(words[0])), 1)
}

var (
	// What nodes and partitions say of users, groups and accounts.
	othersRE = regexp.MustCompile(`\b(Owner|AllowGroups|AllowAccounts|DenyAccounts)=\S+`)
	// Who gave a node's reason.
	reasonRE = regexp.MustCompile(` \[[^\]@\n]*@[^\]\n]*\]`)
)

func (c *call) scontrolShowJobs(flags *set, id string) int {
	sc, err := c.scope()
	if err != nil {
		return c.fail(err, 1)
	}
	jobs := sc.list
	if id != "" {
		in, _ := sc.pick([]string{id})
		if len(in) == 0 {
			return c.unknown("slurm_load_jobs error: Invalid job id specified\n")
		}
		jobs = in
	} else if len(jobs) == 0 {
		io.WriteString(c.stdout, "No jobs in the system\n")
	}
	for _, j := range jobs {
		stdout, stderr, exit := c.output("scontrol", append(flags.args(), "show", "job", j)...)
		if exit != 0 && id == "" {
			continue // it went between the question and this one
		}
		if exit := c.show(logRE.ReplaceAllString(untag(stdout, ""), "$1=(opened in the sandbox)"), stderr, exit); exit != 0 {
			return exit
		}
	}
	return 0
}

// logRE finds in a job's description the file of the launcher's messages.
var logRE = regexp.MustCompile(`\b(StdErr|StdOut)=[^\n]*?/agent-sandbox/log/slurm-[^ \n/]*\.log`)

func (c *call) scontrolJobs(flags *set, key string, words []string) int {
	var specs []string
	for _, w := range words {
		specs = append(specs, splitJobs(w)...)
	}
	if len(specs) == 0 {
		return c.fail(refuse("scontrol "+key+" ID", "too few arguments for keyword:%s", key), 1)
	}
	sc, err := c.scope()
	if err != nil {
		return c.fail(err, 1)
	}
	jobs, out := sc.pick(specs)
	if len(out) > 0 {
		c.unknowns("Invalid job id specified for job ", quoted(out), "\n")
		return 1
	}
	c.log("info", "scontrol %s %q", key, jobs)
	return c.run(command{name: "scontrol", args: append(flags.args(), key, strings.Join(jobs, ",")), stdout: c.stdout, stderr: c.stderr})
}

// updates are the fields of a job that a client may change, by their names in
// small letters, with how a value is checked. Paths are not among them: Slurm
// opens what they name itself.
var updates = map[string]func(string) error{
	"account": name, "arraytaskthrottle": number, "comment": text, "cpuspertask": number, "cpus/task": number, "deadline": date, "dependency": dependency,
	"excnodelist": optionally(hosts), "features": feature, "gres": tres, "jobname": text, "licenses": licenses, "mincpusnode": number, "minmemorycpu": size,
	"minmemorynode": size, "name": text, "nice": nice, "nodelist": hosts, "numcpus": count, "numnodes": count, "numtasks": number, "partition": names,
	"priority": oneOf("0"), "qos": name, "reqnodelist": optionally(hosts), "requeue": oneOf("0", "1"), "reservation": name, "reservationname": name,
	"starttime": date, "timelimit": like(`[+-]?([0-9]{1,9}(-[0-9]{1,4})?(:[0-9]{1,4}){0,2})|(?i:unlimited)`, "a time"), "timemin": span,
}

func optionally(check func(string) error) func(string) error {
	return func(v string) error {
		if v == "" {
			return nil
		}
		return check(v)
	}
}

func (c *call) scontrolUpdate(flags *set, words []string) int {
	if len(words) > 0 && strings.EqualFold(words[0], "job") {
		words = words[1:]
	}
	const usage = "scontrol update jobid=ID timelimit=10"
	var job string
	var changes [][2]string
	for _, w := range words {
		k, v, ok := strings.Cut(w, "=")
		k = strings.ToLower(k)
		switch {
		case !ok:
			return c.fail(refuse(usage, "%s is no change: want FIELD=VALUE", quote(w)), 1)
		case k == "jobid" || k == "job":
			if job != "" {
				return c.fail(refuse(usage, "jobid is given twice"), 1)
			}
			job = v
			continue
		}
		check := updates[k]
		if check == nil {
			return c.fail(refuse("change it when the job is submitted", "scontrol update of %s is not allowed in the sandbox", quote(k)), 1)
		}
		if err := errors.Join(plain(v), check(v)); err != nil {
			return c.fail(fmt.Errorf("%s: %w", k, err), 1)
		}
		changes = append(changes, [2]string{k, v})
	}
	if job == "" {
		return c.fail(refuse(usage, "update changes jobs only, and needs jobid=ID"), 1)
	}
	sc, err := c.scope()
	if err != nil {
		return c.fail(err, 1)
	}
	in, _ := sc.pick([]string{job})
	if len(in) == 0 {
		return c.unknown("Invalid job id specified for job " + quote(job) + "\n")
	}
	args := append(flags.args(), "update", "jobid="+in[0])
	for _, ch := range changes {
		k, v := ch[0], ch[1]
		switch k {
		case "comment":
			// The tag stays that of the session that submitted, and of its project. A job
			// without one gets none: it would be in a sandbox's scope from then on.
			owner := sc.jobs[regexp.MustCompile(`\A[0-9]+`).FindString(in[0])]
			if owner.session == "" {
				return c.fail(refuse("change it outside", "job %s was submitted outside a sandbox: its comment is not changed here", job), 1)
			}
			if v, err = tag(owner.session, owner.project, v); err != nil {
				return c.fail(err, 1)
			}
		case "dependency":
			for _, m := range dependencyJobs.FindAllStringSubmatch(v, -1) {
				if _, out := sc.pick(m[1:2]); len(out) > 0 {
					return c.unknown("Invalid job id specified for job " + m[1] + "\n")
				}
			}
		}
		args = append(args, k+"="+v)
	}
	c.log("info", "scontrol %q", args)
	return c.run(command{name: "scontrol", args: args, stdout: c.stdout, stderr: c.stderr})
}
