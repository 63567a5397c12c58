//go:build norunwakeup

package main

import _ "unsafe" // go:linkname

// forcegcperiod is the longest time between two collections, in nanoseconds. The
// runtime's monitor thread wakes at half of it, which is all that wakes an idle
// guard. It has no other setting, so the Makefile builds this program with the tag
// norunwakeup and links it with -checklinkname=0.
//
//go:linkname forcegcperiod runtime.forcegcperiod
var forcegcperiod int64

// sleepWell lets the monitor thread sleep for a century.
func sleepWell() { forcegcperiod = 100 * 365 * 24 * 3600 * 1e9 }
