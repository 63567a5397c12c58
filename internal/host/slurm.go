package host

import (
	"os"

	"agent-sandbox/internal/execpath"
)

// slurmFolders are where Slurm's commands are installed, beside what PATH has.
const slurmFolders = "/usr/bin:/usr/local/bin:/opt/slurm/bin:/usr/local/slurm/bin"

// SlurmCommand finds a command of Slurm: the one that PATH has, as far as the caller
// could not have put it there (execpath.Host), else that of the usual folders. The
// error is fs.ErrNotExist where there is none.
func SlurmCommand(name string) (string, error) {
	return execpath.Host(name, os.Getenv("PATH")+":"+slurmFolders)
}
