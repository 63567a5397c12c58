//go:build !norunwakeup

package main

// sleepWell does nothing in a build without the Makefile's link flags: the
// runtime then wakes an idle guard once a minute.
func sleepWell() {}
