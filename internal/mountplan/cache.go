package mountplan

import "agent-sandbox/internal/mountinfo"

// cache answers each question about the host once, so that a plan is made from
// one view of it, and a thousand entries below one folder cost one look at it.
type cache struct {
	Host
	stat   map[string]answer
	mounts []mountinfo.Mount
	err    error
	asked  bool
}

type answer struct {
	info Info
	err  error
}

func cached(h Host) *cache { return &cache{Host: h, stat: map[string]answer{}} }

func (c *cache) Lstat(path string) (Info, error) {
	a, ok := c.stat[path]
	if !ok {
		a.info, a.err = c.Host.Lstat(path)
		c.stat[path] = a
	}
	return a.info, a.err
}

func (c *cache) Mounts() ([]mountinfo.Mount, error) {
	if !c.asked {
		c.mounts, c.err = c.Host.Mounts()
		c.asked = true
	}
	return c.mounts, c.err
}
