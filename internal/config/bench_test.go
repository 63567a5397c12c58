package config

import (
	"context"
	"os/exec"
	"testing"
)

// The peer of a load with files is a bash that does nothing: more than a small
// multiple of it means that something else is slow.
func BenchmarkLoad(b *testing.B) {
	run := func(name string, files map[string]string) {
		b.Run(name, func(b *testing.B) {
			h := newHome(b)
			for f, text := range files {
				h.write(f, text)
			}
			for b.Loop() {
				if _, err := Load(context.Background(), h.request()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	run("no-file", nil)
	run("one-file", map[string]string{"sandbox.conf": "EXTRA_WRITABLE_PATHS+=(/data)\nPRIVATE_TMP=yes\n"})
	run("ten-files", map[string]string{"sandbox.conf": ":", "conf.d/1.conf": ":", "conf.d/2.conf": ":", "conf.d/3.conf": ":", "conf.d/4.conf": ":",
		"conf.d/5.conf": ":", "conf.d/6.conf": ":", "conf.d/7.conf": ":", "conf.d/8.conf": ":", "conf.d/9.conf": ":"})
	b.Run("peer-bash", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("/bin/bash", "--noprofile", "--norc", "-c", ":").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
