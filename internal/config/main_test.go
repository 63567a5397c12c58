package config

import (
	"context"
	"os"
	"testing"
	"time"

	"agent-sandbox/test/harness"
)

func needRoot(t testing.TB) {
	t.Helper()
	harness.Need(t, os.Getuid() == 0, "an admin layer belongs to root")
}

func contextAfter(t testing.TB, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.Context(), d)
}
