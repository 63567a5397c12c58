package slurm

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// place is a session of a project and another writable folder, which has
// protections, beside folders that are not in it.
func place(t *testing.T) (s *Session, top string) {
	t.Helper()
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"proj/sub/deep", "extra/masked/dir", "extra/ro", "outside/dir", "projx"} {
		if err := os.MkdirAll(top+"/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{"proj/file", "extra/masked/file", "extra/secret", "outside/file"} {
		if err := os.WriteFile(top+"/"+f, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return &Session{Project: top + "/proj", Writable: []string{top + "/extra"},
		Readonly: []string{top + "/extra/masked", top + "/extra/ro", top + "/extra/secret"}, Masked: []string{top + "/extra/masked", top + "/extra/secret"}}, top
}

// answers are what a path is answered with in each place where one can be given,
// without the path itself.
func answers(s *Session, path string) string {
	var out []string
	dir, at, err := s.folder(path)
	if err == nil {
		dir.Close()
		out = append(out, "in "+at)
	}
	errs := []error{err, s.checkFile("output", path, s.Project), s.checkFile("error", path+"/%j", s.Project), s.checkFile("input", path, s.Project)}
	for _, err := range errs {
		if err == nil {
			out = append(out, "taken")
		} else {
			out = append(out, strings.NewReplacer(quote(path), "PATH", quote(path+"/%j"), "PATH").Replace(err.Error()))
		}
	}
	return strings.Join(out, "\n")
}

// Nobody learns from an answer what the host has outside of what a session sees:
// a file, a folder, and what is not there are all one.
func TestPathsOutsideTellNothing(t *testing.T) {
	s, top := place(t)
	want := answers(s, top+"/outside/missing")
	if strings.Contains(want, "taken") || strings.Contains(want, "in /") || strings.Contains(want, "no such") {
		t.Fatalf("%s", want)
	}
	paths := []string{"/", "/etc", "/etc/passwd", "/etc/passwd/x", "/nothere", "/nothere/x", "/proc/self", "/proc/1/root", "/proc/999999999", top, top + "/projx", top + "/missing"}
	for _, out := range []string{"outside", "extra/masked"} {
		for _, p := range []string{"", "/file", "/file/x", "/dir", "/dir/x", "/missing", "/missing/x", "/dir/../file"} {
			paths = append(paths, top+"/"+out+p, top+"/proj/../"+out+p, top+"/proj/sub/../../"+out+p)
		}
		// By links that the session makes, which may come back.
		for i, p := range []string{"", "/file", "/dir", "/missing", "/dir/../../proj", "/missing/../../proj", "/dir/../../proj/sub"} {
			for j, to := range []string{top + "/" + out + p, "../" + out + p} {
				l := top + "/proj/" + filepath.Base(out) + string(rune('a'+i)) + string(rune('a'+j))
				if err := os.Symlink(to, l); err != nil {
					t.Fatal(err)
				}
				paths = append(paths, l, l+"/x", l+"/.", l+"/../proj", l+"/../../proj", l+"/../../proj/sub")
			}
		}
	}
	paths = append(paths, top+"/extra/secret", top+"/extra/secret/x", top+"/outside/dir/../../proj", top+"/outside/missing/../../proj")
	for _, p := range paths {
		if got := answers(s, p); got != want {
			t.Errorf("%s:\n%s\nanother is answered\n%s", p, got, want)
		}
	}
}

// What is the session's own is found as Linux finds it.
func TestPathsOfTheSession(t *testing.T) {
	s, top := place(t)
	for name, to := range map[string]string{
		"deep": "sub/deep", "abs": top + "/proj/sub", "extra": "../extra", "two": "deep", "loop": "loop", "up": top + "/proj/../extra/", "new": "sub/new", "ro": "../extra/ro",
	} {
		if err := os.Symlink(to, top+"/proj/"+name); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"": "/proj", "/": "/proj", "/sub/": "/proj/sub", "/./sub//deep/..": "/proj/sub", "/deep": "/proj/sub/deep", "/two": "/proj/sub/deep", "/two/..": "/proj/sub", "/abs/deep": "/proj/sub/deep",
		"/extra": "/extra", "/up": "/extra", "/ro": "/extra/ro", "/extra/../proj": "/proj", "/../extra": "/extra", "/sub/../../extra/ro/..": "/extra",
	} {
		dir, at, err := s.folder(top + "/proj" + path)
		if err != nil || at != top+want {
			t.Errorf("%s: %q, %v", path, at, err)
			continue
		}
		if real, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(dir.Fd()))); real != at {
			t.Errorf("%s: %s is open", path, real)
		}
		dir.Close()
	}
	for path, why := range map[string]string{"/file": "not a directory", "/file/x": "not a directory", "/missing": "no such file", "/loop": "too many levels", "/missing/..": "no such file", "/new": "no such file"} {
		if _, _, err := s.folder(top + "/proj" + path); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, out := range []string{"a", "sub/a", "deep/../a", "sub/missing/a", "new", "new/a", "%j/a", "a%j", top + "/extra/a", "extra/%x", "../extra/a", top + "/proj/%j", "file"} {
		if err := s.checkFile("output", out, s.Project); err != nil {
			t.Errorf("%s: %v", out, err)
		}
	}
	for _, out := range []string{"ro/a", "../extra/ro/a", "/", "/%j", "../%j", "%j/../a", "missing/../a", "loop", "file/a", top + "/projx/a", "../projx/a"} {
		if err := s.checkFile("output", out, s.Project); err == nil {
			t.Errorf("%s is taken", out)
		}
	}
	if err := s.checkFile("input", "ro/a", s.Project); err != nil {
		t.Error(err)
	}
}
