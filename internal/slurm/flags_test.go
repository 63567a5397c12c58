package slurm

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"agent-sandbox/test/harness"
)

// value is one that a flag's check takes.
var value = map[string]string{
	"account": "acct", "begin": "now+1hour", "comment": "a = b", "constraint": "intel&gpu*2", "core-spec": "1", "cores-per-socket": "2", "cpu-bind": "cores",
	"cpus-per-gpu": "1", "cpus-per-task": "2", "deadline": "2030-01-01T12:00:00", "dependency": "afterok:12:13,singleton", "distribution": "block:cyclic", "error": "e", "exclude": "n[1-3],m",
	"exclusive": "user", "export": "ALL,A=b", "extra-node-info": "2:*:1-2", "gpu-bind": "closest", "gpus": "a100:2", "gpus-per-node": "2", "gpus-per-socket": "1", "gpus-per-task": "1",
	"gres": "gpu:a100:2,shard:1", "gres-flags": "enforce-binding", "hint": "nomultithread", "input": "i", "job-name": "a b", "licenses": "matlab@db:2", "mail-type": "END,FAIL",
	"mail-user": "me", "mem": "4G", "mem-per-cpu": "1000M", "mem-per-gpu": "1g", "mincpus": "2", "nice": "-5", "no-kill": "off", "nodelist": "n1", "nodes": "1-4", "ntasks": "4",
	"ntasks-per-core": "1", "ntasks-per-gpu": "1", "ntasks-per-node": "1", "ntasks-per-socket": "1", "tasks-per-node": "1", "open-mode": "append", "output": "o", "partition": "a,b",
	"qos": "high", "reservation": "r", "signal": "B:USR1@60", "sockets-per-node": "1", "switches": "1@5:00", "thread-spec": "1", "threads-per-core": "1", "time": "1-12:00:00", "time-min": "10",
	"tmp": "1G", "array": "0-15:4,20%2", "kill-on-invalid-dep": "yes", "wait-all-nodes": "1", "wrap": "a\nb", "immediate": "10", "jobid": "12", "kill-on-bad-exit": "1", "mem-bind": "local",
	"mpi": "none", "relative": "1", "wait": "10", "format": "jobid", "Format": "jobid:20,state:.5X", "jobs": "12_[1-3],13.batch", "job": "12", "name": "x y", "sort": "+i,-p", "states": "PD,R", "state": "R",
	"steps": "12.0", "step": "12.0", "user": "me", "users": "me", "jobname": "x", "delimiter": "|", "endtime": "now", "starttime": "2020-01-01", "units": "G", "fields": "jobid", "nodes.sinfo": "n1",
	"licenses.squeue": "a,b", "partition.scancel": "a", "signal.scancel": "USR1", "uid": "0",
}

func valueOf(command, flag string) string {
	if v, ok := value[flag+"."+command]; ok {
		return v
	}
	return value[flag]
}

func TestAllowedFlagsAreWrittenByOurselves(t *testing.T) {
	for command, table := range tables {
		for _, f := range table {
			if f.refused != "" {
				continue
			}
			name := f.long
			if f.as != "" {
				name = f.as
			}
			v := valueOf(command, f.long)
			if f.arg != none && v == "" {
				t.Fatalf("%s --%s: the test has no value", command, f.long)
			}
			type spelling []string
			with, without := []spelling{{"--" + f.long + "=" + v}}, []spelling{{"--" + f.long}}
			if f.arg == required || f.arg == following {
				with = append(with, spelling{"--" + f.long, v})
			}
			if f.short != 0 {
				with = append(with, spelling{"-" + string(f.short) + v})
				without = append(without, spelling{"-" + string(f.short)})
				if f.arg == required || f.arg == following {
					with = append(with, spelling{"-" + string(f.short), v})
				}
			}
			if f.arg != none {
				for _, sp := range with {
					s, rest, err := table.parse(append(slices.Clone(sp), "word", "-x"), true)
					if err != nil {
						t.Errorf("%s %q: %v", command, sp, err)
						continue
					}
					if got := s.args(); !slices.Equal(got, []string{"--" + name + "=" + v}) || !slices.Equal(rest, []string{"word", "-x"}) {
						t.Errorf("%s %q: %q %q", command, sp, got, rest)
					}
				}
			}
			for _, sp := range without {
				s, _, err := table.parse(sp, true)
				switch {
				case f.arg == required && err == nil:
					t.Errorf("%s %q: taken without its value", command, sp)
				case f.arg != required && err != nil:
					t.Errorf("%s %q: %v", command, sp, err)
				case f.arg != required && !slices.Equal(s.args(), []string{"--" + name}):
					t.Errorf("%s %q: %q", command, sp, s.args())
				}
			}
			if f.arg == none {
				if _, _, err := table.parse([]string{"--" + f.long + "=x"}, true); err == nil {
					t.Errorf("%s --%s takes a value", command, f.long)
				}
			}
		}
	}
}

func TestRefusedFlagsAreRefusedInEverySpelling(t *testing.T) {
	for command, table := range tables {
		for _, f := range table {
			if f.refused == "" {
				continue
			}
			l := "--" + f.long
			spellings := [][]string{{l}, {l + "=0"}, {l, "0"}, {l + "="}, {"--help", l + "=0"}, {l, "--help"}}
			if command == "sbatch" || command == "srun" {
				spellings = append(spellings, []string{"-n", "1", l + "=0"}, []string{"-Hk", l}, []string{"-Jx", l})
			}
			if f.short != 0 {
				s := "-" + string(f.short)
				spellings = append(spellings, []string{s}, []string{s + "/x"}, []string{s, "0"}, []string{s + "=0"}, []string{"-V" + string(f.short) + "0"}, []string{"-V" + string(f.short), "0"})
			}
			// What getopt_long completes.
			for n := 1; n < len(f.long); n++ {
				p := f.long[:n]
				if g := table.byLong(p); g == nil {
					spellings = append(spellings, []string{"--" + p}, []string{"--" + p + "=0"}, []string{"--" + p, "0"})
				}
			}
			for _, sp := range spellings {
				if _, _, err := table.parse(sp, true); err == nil {
					t.Errorf("%s %q: taken", command, sp)
				}
			}
		}
	}
}

func TestRefusedFlagsInScripts(t *testing.T) {
	for _, f := range tables["sbatch"] {
		if f.refused == "" {
			continue
		}
		l := "--" + f.long
		lines := []string{
			"#SBATCH " + l + "=0", "#SBATCH " + l + " 0", "#SBATCH\t" + l + "\t0", "#SBATCH -n 1 " + l + "=0", "#SBATCH --hold\t" + l + "=0 # comment",
			"#SBATCH" + l + "=0", `#SBATCH "` + l + `=0"`, `#SBATCH '` + l + `'=0`, `#SBATCH \` + l + `=0`, `#SBATCH -J "a b" ` + l, "#SBATCH\v" + l, "#SBATCH " + l[:len(l)-1] + "=0",
		}
		if f.short != 0 {
			lines = append(lines, "#SBATCH -"+string(f.short)+"0", "#SBATCH -H"+string(f.short)+" 0")
		}
		for _, line := range lines {
			for _, script := range []string{"#!/bin/sh\n" + line, "#!/bin/sh\n# x\n\n \t\n  # y\n" + line + "\ntrue\n", "#!/bin/sh\n#SBATCH -n1\n" + line + "\n"} {
				if _, _, err := scriptFlags(tables["sbatch"], []byte(script)); err == nil || !strings.Contains(err.Error(), "line ") {
					t.Errorf("%q: %v", script, err)
				}
			}
		}
	}
}

func TestValues(t *testing.T) {
	for _, bad := range [][]string{
		{"sbatch", "--nodelist=/etc/passwd"}, {"sbatch", "-w./f"}, {"sbatch", "--exclude=a,/f"}, {"sbatch", "--array=1;2"}, {"sbatch", "--time=1 --uid=0"},
		{"sbatch", "--job-name=a\nb"}, {"sbatch", "--comment=a\x1fb"}, {"sbatch", "--comment=a\x1eb"}, {"sbatch", "--partition="}, {"sbatch", "--account=--uid"}, {"sbatch", "--dependency=expand:12"},
		{"sbatch", "--dependency=afterok:1,evil"}, {"sbatch", "--export=NONE"}, {"sbatch", "--export=HOME"}, {"sbatch", "--export=A B=c"}, {"sbatch", "--export="}, {"sbatch", "--exclusive=all"},
		{"sbatch", "--mem="}, {"sbatch", "--gres=gpu --uid"}, {"sbatch", "--open-mode=x"}, {"srun", "--mpi=pmix"}, {"srun", "--mpi=list"}, {"srun", "--cpu-bind=a b"},
		{"squeue", "--format=%all"}, {"squeue", "--format=%.10All"}, {"squeue", "--format=%k%"}, {"squeue", "--Format=all"}, {"squeue", "--Format=jobid,StdOut:200"}, {"squeue", "--Format=stderr"}, {"squeue", "--Format=STDIN"}, {"squeue", "--Format=jobid,Comment:50"}, {"squeue", "--Format=jobid:1%k"},
		{"squeue", "--jobs=x;y"}, {"sinfo", "--format=%u"}, {"sinfo", "--format=%.20U"}, {"sinfo", "--Format=nodes,user"}, {"sinfo", "--nodes=/etc/passwd"},
		{"sacct", "--format=jobid,submitline%500"}, {"sacct", "--format=ALL"}, {"scancel", "--nodelist=/etc/passwd"}, {"squeue", "-w/etc/passwd"},
	} {
		if _, _, err := tables[bad[0]].parse(bad[1:], true); err == nil {
			t.Errorf("%q: taken", bad)
		}
	}
}

var optionInHelp = regexp.MustCompile(`(?m)^\s*(?:-([A-Za-z])(?:, ?|,\s*| +| or +))?--([A-Za-z][A-Za-z0-9-]*)`)

// TestEveryFlagOfSlurmIsKnown holds the tables against the Slurm that is
// installed: a flag that it has and no table names was overlooked. It needs no
// running Slurm.
func TestEveryFlagOfSlurmIsKnown(t *testing.T) {
	_, err := exec.LookPath("sbatch")
	harness.Need(t, err == nil, "Slurm is not installed: run test/deps")
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("ClusterName=x\nSlurmctldHost=localhost\nNodeName=localhost\nPartitionName=p Nodes=ALL\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for command, table := range tables {
		c := exec.Command(command, "--help")
		c.Env = append(os.Environ(), "SLURM_CONF="+conf)
		out, _ := c.CombinedOutput()
		found := optionInHelp.FindAllStringSubmatch(string(out), -1)
		// sacct answers nothing without accounting.
		if len(found) < 5 && command != "sacct" {
			t.Errorf("%s --help: %s", command, out)
		}
		for _, m := range found {
			f := table.byLong(m[2])
			if f == nil {
				t.Errorf("%s: no table has --%s", command, m[2])
				continue
			}
			if m[1] != "" {
				if g := table.byShort(m[1][0]); g == nil || g.long != f.long && g.long != f.as {
					t.Errorf("%s: -%s is not --%s", command, m[1], m[2])
				}
			}
		}
	}
}

func TestDirectives(t *testing.T) {
	for line, words := range map[string][]string{
		"#SBATCH -n 1 --mem=2":         {"-n", "1", "--mem=2"},
		"#SBATCH\t\t-n\t1":             {"-n", "1"},
		"#SBATCH-n1":                   {"-n1"},
		`#SBATCH -J "a b" -n1`:         {"-J", "a b", "-n1"},
		`#SBATCH -J a\ b`:              {"-J", "a", "b"},
		`#SBATCH -J "a\ b"`:            {"-J", "a b"},
		`#SBATCH --x='a "b" \'c'`:      {`--x=a "b" 'c`},
		`#SBATCH -n1 # -n2`:            {"-n1"},
		`#SBATCH -n1#-n2`:              {"-n1"},
		`#SBATCH -J "#1"`:              {"-J", "#1"},
		`#SBATCH ""`:                   {""},
		"#SBATCH":                      nil,
		"#SBATCH \r":                   nil,
		"\xff #SBATCH -n1":             nil,
		"##SBATCH -n1":                 nil,
		" #SBATCH -n1":                 nil,
		"true\n#SBATCH -n1":            nil,
		"#x\n\n \t\n#SBATCH -n1\ntrue": {"-n1"},
	} {
		found, _, err := directives([]byte(line))
		if err != nil {
			t.Errorf("%q: %v", line, err)
			continue
		}
		var got []string
		for _, d := range found {
			got = append(got, d.words...)
		}
		if !slices.Equal(got, words) {
			t.Errorf("%q: %q, want %q", line, got, words)
		}
	}
	if _, _, err := directives([]byte("#!/bin/sh\n#SBATCH -J 'a\n")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("an open quote: %v", err)
	}
	if _, pbs, _ := directives([]byte("#!/bin/sh\ntrue\n#BSUB -x\n#PBS y\n")); !slices.Equal(pbs, []int{3, 4}) {
		t.Errorf("other systems' lines: %v", pbs)
	}
}

// safe holds what has to be true of whatever a parser lets through.
func safe(t *testing.T, tab table, s *set) {
	t.Helper()
	for _, a := range s.args() {
		name, v, _ := strings.Cut(strings.TrimPrefix(a, "--"), "=")
		f := tab.byLong(name)
		if !strings.HasPrefix(a, "--") || f == nil || f.refused != "" || f.as != "" {
			t.Fatalf("%q is passed on", a)
		}
		if !f.raw && strings.ContainsFunc(v, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			t.Fatalf("%q is passed on", a)
		}
	}
}

func FuzzScript(f *testing.F) {
	for _, s := range []string{
		"#!/bin/sh\n#SBATCH -n 1\n", "#!/bin/sh\n#SBATCH\t--mem=1G\t-H # x\n", "#!/bin/sh\n#SBATCH -J \"a b\" --time 5\ntrue\n#SBATCH --uid=0\n", "#!/bin/sh\n#PBS -l x\n",
		"#!/bin/sh\n#SBATCH --uid=0", "#!/bin/sh\n#SBATCH \\", "#!/bin/sh\r\n#SBATCH '\n", "#!/bin/sh\n#SBATCH --wrap=x\n", "#SBATCH -HkOs -n1 -D/x\n", "#!/bin/sh\n#SBATCH hetjob\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		s, _, err := scriptFlags(tables["sbatch"], script)
		if err == nil {
			safe(t, tables["sbatch"], s)
		}
		// The submitted script has no line of the client's that could be seen as a directive.
		j := &job{session: &Session{Launcher: "/l", Project: string(script), User: "u"}, cwd: string(script), args: []string{string(script)}, output: string(script)}
		for i, line := range strings.Split(string(j.script(script)), "\n") {
			if strings.HasPrefix(line, "#") && !strings.HasPrefix(line, dataMark) && i != 0 {
				t.Fatalf("line %d is %q", i+1, line)
			}
		}
	})
}

func FuzzArgs(f *testing.F) {
	f.Add("sbatch", "-n\x001\x00--mem=1\x00x")
	f.Add("srun", "-I5\x00-Kl\x00--uid=0")
	f.Add("squeue", "-j\x0012\x00-o\x00%k")
	f.Add("scancel", "--us=x\x00--\x00-x")
	f.Fuzz(func(t *testing.T, command, joined string) {
		tab, ok := tables[command]
		if !ok {
			return
		}
		for _, stop := range []bool{true, false} {
			if s, _, err := tab.parse(strings.Split(joined, "\x00"), stop); err == nil {
				safe(t, tab, s)
			}
		}
	})
}

// The one word that may be given is named.
func TestAMessageNamesWhatCanBeGiven(t *testing.T) {
	_, _, err := tables["srun"].parse([]string{"--mpi=pmi2", "id"}, true)
	if err == nil || !strings.HasSuffix(err.Error(), `"pmi2" cannot be given: want none`) {
		t.Error(err)
	}
}
