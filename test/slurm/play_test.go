package slurm

import (
	"testing"
	"time"
	"os"

	"agent-sandbox/test/slurm/node"
)

func TestPlay(t *testing.T) {
	n := node.Start(t)
	os.WriteFile("/tmp/play.conf", []byte(n.Conf), 0o644)
	for { if _, err := os.Stat("/tmp/play.stop"); err == nil { break }; time.Sleep(time.Second) }
}
