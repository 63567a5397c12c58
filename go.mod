module agent-sandbox

go 1.26.0

// What these add to the start of every program costs more than some of them take.
godebug (
	containermaxprocs=0
	decoratemappings=0
	updatemaxprocs=0
)

require (
	github.com/cilium/ebpf v0.22.0
	golang.org/x/sys v0.50.0
)
