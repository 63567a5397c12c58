// Package agents reads the profiles of AI agents: data files that say which
// paths of the home an agent needs, how it logs in, and where its instruction
// file lies. The line format is described at the top of each file in share/agents.
package agents

import "errors"

// Profile is one agent. Paths are relative to the home, clean, without `..`.
type Profile struct {
	Name         string   // name of the file without .conf
	Commands     []string // base names of the programs that start it
	Writable     []string // folders it keeps state in
	Readonly     []string // files and folders it reads
	Credentials  []string // environment variables it logs in with
	Logins       []string // files that show that it is logged in
	Instructions string   // its instruction file, empty where it has none
	Env          []EnvVar // set in the sandbox
	Carry        []Carry  // state to copy once before a launch
	Hint         string   // how to log in
}

// EnvVar is a variable that a profile sets to a path below the home.
type EnvVar struct{ Name, Path string }

// Carry is a file to be copied once, when To does not exist.
type Carry struct{ From, To string }

// Dir is the folder of the profiles: share/agents beside the running binary, else
// the folder set at build time.
func Dir() string { return "" }

// Load reads the profile of one agent from dir; it fails with fs.ErrNotExist
// where there is none of that name.
func Load(dir, name string) (*Profile, error) { return nil, errors.ErrUnsupported }

// CarryOver copies the state files of p that are missing below home, without
// following a link there, and returns what it made (paths below home).
func (p *Profile) CarryOver(home string) ([]string, error) { return nil, errors.ErrUnsupported }

// Starts says whether command, the argument of a launch, starts this agent.
func (p *Profile) Starts(command string) bool { return false }

// Warning is the text for an agent that is being started, whose credential
// variables are among the removed ones, and that has no login file below home;
// empty where there is nothing to say.
func (p *Profile) Warning(home string, removed []string) string { return "" }

// Note is the instruction file as the agent sees it: the user's own text, then a
// short note on the sandbox. It depends on nothing that a reload changes.
func Note(own []byte, project string, p *Profile) []byte { return nil }
