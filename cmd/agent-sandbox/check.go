package main

import (
	"io"

	"agent-sandbox/internal/cli"
)

func check(args []string, stdout io.Writer, p cli.Printer) int { return cli.Failed }
