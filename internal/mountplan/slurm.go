package mountplan

import (
	"agent-sandbox/internal/relay"
)

// slurmConfig are the folders of Slurm's configuration, and munge those of the socket
// by which whoever can connect to it is the user for all of the cluster.
var (
	slurmConfig = []string{"/etc/slurm", "/etc/slurm-llnl", "/usr/local/etc/slurm", "/opt/slurm/etc"}
	munge       = []string{"/run/munge", "/var/run/munge", "/run/slurm", "/var/run/slurm"}
)

// proxy: where the client of the Slurm proxy lies, and the folder in which it makes
// its FIFOs. The folder of the request FIFO is each session's own, and no line of a plan.
func (b *builder) proxy() error {
	p := b.in.Slurm
	if p == nil {
		return nil
	}
	b.base = append(b.base,
		Mount{Kind: Tmpfs, Path: relay.Answers, Options: "mode=0700"},
		Mount{Kind: Tmpfs, Path: relay.Bin, Options: "mode=0755,ro"},
		Mount{Kind: RO, Path: relay.Stub, Source: p.Stub})
	for _, name := range p.Names {
		b.links = append(b.links, link{join(relay.Bin, name), relay.Stub})
	}
	return nil
}

// slurm closes what leads to Slurm past the proxy, also where none runs: the sockets
// that speak for the user are in /run, which is fresh, unless the configuration shows
// it. Where the proxy runs its client covers the real commands, by whatever path they
// are called.
func (b *builder) slurm() error {
	for _, p := range munge {
		if err := b.protect(request{kind: MaskDir, path: p, exists: true, from: "Slurm"}); err != nil {
			return err
		}
	}
	if b.in.Slurm == nil {
		return nil
	}
	for _, p := range slurmConfig {
		if err := b.protect(request{kind: MaskDir, path: p, exists: true, from: "Slurm"}); err != nil {
			return err
		}
	}
	for _, home := range b.homes() {
		// Flags for srun, a prolog that runs outside among them, where the site has
		// cli_filter/user_defaults.
		if err := b.protect(request{kind: MaskDir, path: join(home, ".slurm"), dir: true, always: true, from: "Slurm"}); err != nil {
			return err
		}
	}
	for _, p := range b.in.Slurm.Commands {
		r, err := resolve(b.h, p)
		if err != nil || !r.found || r.info.Type != Regular || b.coveredBy(r.path) != "" {
			continue
		}
		if g, ok := b.governing(r.path); ok && (g.Kind == RO || g.Kind == RW) {
			b.prot[r.path] = protection{mount: Mount{Kind: RO, Path: r.path, Source: b.in.Slurm.Stub}, from: "Slurm"}
		}
	}
	return nil
}
