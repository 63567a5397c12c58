// Package config loads the configuration of a session: five layers, of which
// three are bash files sourced in a contained child, validated by type and
// narrowed by the admin's rules. See agent-sandbox.conf(5).
package config

import "strings"

// Type of a variable.
type Type int

const (
	Array   Type = iota // list of strings, order kept
	Bool                // "true" or "false" after validation
	Enum                // one of Var.Values
	Integer             // decimal, or empty
)

// Rule is what the admin layer means for later layers.
type Rule int

const (
	Adds       Rule = iota // no rule: later layers add, or set
	Pinned                 // entries of the admin cannot be removed
	HardenOnly             // a scalar can only be made stricter: later in Var.Values is stricter
	Narrows                // ALLOWED_PROJECT_PARENTS: entries must lie below an admin's entry
	AdminOnly              // only the admin layer sets it: DENIED_WRITABLE_PATHS
)

// Reload is what a changed value means for a running session.
type Reload int

const (
	Live      Reload = iota // its mounts are added and revoked
	Launch                  // needs a restart: is a `setting` line of the session record
	Immediate               // read anew by every command, no part of a session
)

// Var describes one variable. The table Vars is the one place where a variable
// is listed: validation, `config`, the record, and the test of the man page read it.
type Var struct {
	Name    string
	Type    Type
	Values  []string // of an Enum, and of a Bool with HardenOnly: loosest first
	Default []string // a scalar has one element
	Rule    Rule
	Reload  Reload
	Env     bool // layer 5: the environment may override the scalar
	Secret  bool // values may hold secrets: a digest is recorded and nothing is printed
	Paths   Base // entries are paths, relative to what
}

// Base says what relative path entries of an array are relative to.
type Base int

const (
	NoPaths  Base = iota
	Absolute      // must be absolute, `~` and variables are expanded by bash
	Home          // relative to $HOME (an absolute path below $HOME is taken too)
	Project       // relative to the project dir
	Device        // globs below /dev
)

// Origin is where a value came from: a file and, where bash can tell, a line.
type Origin struct {
	Layer string // "default", "admin", "user", "project", "environment", "agent"
	File  string
	Line  int // 0: not known
}

// Entry is one value of an array, or the value of a scalar.
type Entry struct {
	Text   string
	Origin Origin
}

// Settings are the validated values of all variables. Use the accessors; a name
// that is not in Vars panics, since it is a mistake in the program.
//
// After Load and Result.ApplyLaunch the paths are checked: Absolute entries are
// absolute and clean, Home and Project entries relative and clean, without `..`
// and without duplicates.
type Settings struct {
	values map[string][]Entry
	pinned map[string][]string
}

// Pinned is what the admin's file listed for an array that later layers cannot
// take entries from, or the value that it gave a scalar (one element). Empty
// where it set nothing.
func (s *Settings) Pinned(name string) []string {
	mustVar(name)
	return s.pinned[name]
}

// Entries returns the elements of an array with their origins.
func (s *Settings) Entries(name string) []Entry {
	mustVar(name)
	return s.values[name]
}

// Strings returns the elements of an array.
func (s *Settings) Strings(name string) []string {
	var out []string
	for _, e := range s.Entries(name) {
		out = append(out, e.Text)
	}
	return out
}

// Scalar returns the value of an Enum or Integer.
func (s *Settings) Scalar(name string) string {
	if e := s.Entries(name); len(e) > 0 {
		return e[0].Text
	}
	return ""
}

// Bool returns the value of a Bool.
func (s *Settings) Bool(name string) bool { return s.Scalar(name) == "true" }

// Set replaces the value of a variable; reload uses it to keep launch-only
// settings as the session's record has them.
func (s *Settings) Set(name string, entries []Entry) {
	mustVar(name)
	if s.values == nil {
		s.values = map[string][]Entry{}
	}
	s.values[name] = entries
}

func varNames() []string {
	var out []string
	for _, v := range Vars {
		out = append(out, v.Name)
	}
	return out
}

// Lookup finds a variable by name.
func Lookup(name string) (Var, bool) {
	i, ok := varIndex[name]
	if !ok {
		return Var{}, false
	}
	return Vars[i], true
}

func mustVar(name string) Var {
	v, ok := Lookup(name)
	if !ok {
		panic("config: no variable " + name)
	}
	return v
}

var varIndex = func() map[string]int {
	m := make(map[string]int, len(Vars))
	for i, v := range Vars {
		m[v.Name] = i
	}
	return m
}()

var (
	boolFalseStricter = []string{"true", "false"}
	boolTrueStricter  = []string{"false", "true"}
	boolValues        = boolTrueStricter
)

// Vars lists every variable, in the order in which `agent-sandbox config` and the
// record have them. Source: config-reference.md, agent-sandbox.conf(5).
var Vars = []Var{
	// ALLOWED_PROJECT_PARENTS has $HOME as its default: Load puts it in.
	{Name: "ALLOWED_PROJECT_PARENTS", Rule: Narrows, Reload: Immediate, Paths: Absolute},
	{Name: "READONLY_MOUNTS", Paths: Absolute,
		Default: words("/usr /lib /lib32 /lib64 /bin /sbin /etc /opt /nix /snap")},
	{Name: "EXTRA_WRITABLE_PATHS", Paths: Absolute},
	{Name: "DENIED_WRITABLE_PATHS", Rule: AdminOnly, Paths: Absolute},
	{Name: "EXTRA_BLOCKED_PATHS", Rule: Pinned, Paths: Absolute},
	{Name: "BLOCKED_FILES", Rule: Pinned, Paths: Absolute},
	{Name: "HOME_ACCESS", Type: Enum, Values: words("restricted tmpwrite read write"), Default: words("tmpwrite"), Env: true},
	{Name: "HOME_READONLY", Paths: Home,
		Default: words(".bashrc .bash_profile .profile .zshrc .zprofile .inputrc .vimrc .vim .tmux.conf .dircolors .gitconfig" +
			" .config/git .local/bin .local/share/pipx .npm-global .nvm .cargo .rustup go .condarc .mambarc micromamba .linuxbrew")},
	{Name: "HOME_WRITABLE", Paths: Home, Default: words(".cache")},
	{Name: "HOME_SEEDED_FILES", Reload: Launch, Paths: Home, Default: words(".gitconfig")},
	{Name: "SANDBOX_ENV", Reload: Launch, Secret: true},
	{Name: "BLOCKED_ENV_VARS", Rule: Pinned, Reload: Launch,
		Default: words("GITHUB_PAT DATABASE_URL PGPASSWORD MYSQL_PWD MONGO_URI REDIS_URL GOOGLE_APPLICATION_CREDENTIALS KRB5CCNAME" +
			" DBUS_SESSION_BUS_ADDRESS OLDPWD TMUX TMUX_PANE SLURM_CONF SLURM_CONFIG_DIR BASH_ENV ENV")},
	{Name: "BLOCKED_ENV_PATTERNS", Rule: Pinned, Reload: Launch,
		Default: words("SSH_* *_TOKEN *_SECRET *_PASSWORD *_CREDENTIAL *_CREDENTIALS *_API_KEY *_SECRET_KEY *_PRIVATE_KEY AWS_*" +
			" AMAZON_* EC2_* AZURE_* MSAL_* GCP_* GCLOUD_* GOOGLE_CLOUD_* VAULT_* KUBECONFIG KUBE_* SLURM_JWT DOCKER_* REGISTRY_* CI_*" +
			" GITLAB_* JENKINS_* BUILDKITE_* CIRCLECI_* *password*/i")},
	{Name: "ALLOWED_ENV_VARS", Reload: Launch,
		Default: words("ANTHROPIC_API_KEY OPENAI_API_KEY CODEX_API_KEY GEMINI_API_KEY GOOGLE_API_KEY")},
	{Name: "DEVICES", Reload: Launch, Paths: Device,
		Default: words("/dev/nvidia* /dev/nvidia-uvm /dev/nvidia-uvm-tools /dev/nvidia-modeset /dev/nvidiactl")},
	{Name: "DEVICES_BLACKLIST", Rule: Pinned, Reload: Launch, Paths: Device,
		Default: words("/dev/mem /dev/kmem /dev/port /dev/pts /dev/sd* /dev/nvme* /dev/vd* /dev/dm-* /dev/loop*")},
	{Name: "SANDBOX_BACKEND", Type: Enum, Values: words("auto bwrap firejail landlock"), Default: words("auto"), Reload: Launch, Env: true},
	{Name: "PRIVATE_TMP", Type: Bool, Values: boolTrueStricter, Default: words("true"), Rule: HardenOnly, Reload: Launch, Env: true},
	{Name: "PRIVATE_IPC", Type: Bool, Values: boolTrueStricter, Default: words("true"), Rule: HardenOnly, Reload: Launch, Env: true},
	{Name: "FILTER_PASSWD", Type: Bool, Values: boolTrueStricter, Default: words("true"), Rule: HardenOnly, Reload: Launch, Env: true},
	{Name: "NESTED_SANDBOX", Type: Bool, Values: boolFalseStricter, Default: words("false"), Rule: HardenOnly, Reload: Launch},
	{Name: "SANDBOX_NPROC_LIMIT", Type: Integer, Reload: Launch, Env: true},
	{Name: "SANDBOX_QUIET", Type: Bool, Values: boolValues, Default: words("false"), Reload: Immediate, Env: true},
	{Name: "PROJECT_READONLY", Paths: Project, Default: words(".git/hooks .git/config")},
	{Name: "AUTOMOUNT_ROOTS", Reload: Launch, Paths: Absolute},
	{Name: "MOUNT_GUARD", Type: Enum, Values: words("repair warn off"), Default: words("repair"), Reload: Launch, Env: true},
	{Name: "MOUNT_GUARD_REBIND", Type: Bool, Values: boolValues, Default: words("true"), Reload: Launch, Env: true},
	{Name: "ENABLED_AGENTS", Reload: Launch, Default: words("claude codex gemini")},
	{Name: "SUPPRESS_AGENT_WARNINGS", Reload: Immediate},
	{Name: "NETWORK_FILTER_MODE", Type: Enum, Values: words("open filtered proxied isolated"), Default: words("open"),
		Rule: HardenOnly, Reload: Launch, Env: true},
	{Name: "NETWORK_FILTER_FALLBACK", Type: Enum, Values: words("open stricter strict"), Default: words("strict"),
		Rule: HardenOnly, Reload: Launch},
	// Hosts cover their subdomains; a bare number is a port of any host.
	{Name: "NETWORK_BLOCKLIST", Rule: Pinned, Reload: Launch,
		Default: words("25 465 587 2525 853" +
			" pastebin.com paste.ee paste.rs hastebin.com dpaste.com dpaste.org ix.io sprunge.us termbin.com 0x0.st rentry.co" +
			" controlc.com ghostbin.com privatebin.net transfer.sh file.io" +
			" webhook.site requestbin.com pipedream.net hookbin.com beeceptor.com requestcatcher.com interact.sh oast.pro" +
			" dns.google cloudflare-dns.com one.one.one.one dns.quad9.net doh.opendns.com dns.adguard.com dns.nextdns.io")},
	{Name: "NETWORK_BLOCKLIST_EXCEPT", Reload: Launch},
	{Name: "NETWORK_MAIL_BLOCK", Type: Enum, Values: words("off auto on"), Default: words("auto"), Rule: HardenOnly, Reload: Launch, Env: true},
	{Name: "SLURM_SCOPE", Type: Enum, Values: words("session project user none"), Default: words("project"), Reload: Launch, Env: true},
	{Name: "CHAPERON", Type: Enum, Values: words("off auto on"), Default: words("auto"), Rule: HardenOnly, Reload: Launch},
	{Name: "CHAPERON_LOG_LEVEL", Type: Enum, Values: words("debug info warn error"), Default: words("info"), Reload: Launch},
	{Name: "CHAPERON_LOG_RETAIN_DAYS", Type: Integer, Default: words("7"), Reload: Launch},
	{Name: "SANDBOX_MODULES", Reload: Launch},
}

func words(s string) []string { return strings.Fields(s) }
