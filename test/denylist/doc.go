// Package denylist tests agent-sandbox-execd and agent-sandbox-exec on a real
// kernel: in the virtual machine of test/vm, as root, with ordinary users. Its tests
// are built with the tag vm, by test/vm/suites/denylist. Each is named after the
// property that it proves; docs/denylist-security.md says which rule each attack is
// against.
package denylist
