# agent-sandbox: `make demo` and `make check` do everything on a fresh Debian 12.

VERSION    := $(shell cat VERSION)
PREFIX     ?= /usr/local
DESTDIR    ?=
BINDIR      = $(PREFIX)/bin
SBINDIR     = $(PREFIX)/sbin
LIBEXECDIR  = $(PREFIX)/libexec/agent-sandbox
DATADIR     = $(PREFIX)/share/agent-sandbox
MANDIR      = $(PREFIX)/share/man
COMPDIR     = $(PREFIX)/share/bash-completion/completions
DOCDIR      = $(PREFIX)/share/doc
UNITDIR     = $(PREFIX)/lib/systemd/system
SYSCONFDIR ?= /etc
# Where the binaries look for what does not lie beside them; packages build with /usr.
RUNPREFIX  ?= $(PREFIX)

GO      ?= go
MODULE   = agent-sandbox
LDFLAGS  = -s -w -buildid= \
	-X $(MODULE)/internal/cli.Version=$(VERSION) \
	-X $(MODULE)/internal/cli.Libexec=$(RUNPREFIX)/libexec/agent-sandbox \
	-X $(MODULE)/internal/cli.Datadir=$(RUNPREFIX)/share/agent-sandbox
GOBUILD  = $(GO) build -trimpath -buildvcs=false

BIN     := $(notdir $(wildcard cmd/*))
CGO     := mount-repair
USERBIN := agent-sandbox agent-sandbox-reload agent-sandbox-exec
ROOTBIN := agent-sandbox-execd
HELPERS := mount-repair mount-guard chaperon chaperon-stub

all: build

build: $(BIN:%=build/%) build/share

# The binaries look for the profiles beside themselves first.
build/share:
	rm -rf $@ && mkdir -p $@ && cp -r share/agents $@

.PHONY: all build bpf test build/agent_sandbox.bpf.o build/share package package-arm64 deps install uninstall check check-vm check-fast lint bench demo clean $(BIN:%=build/%)

# The one that sleeps for days: cmd/mount-guard/idle.go says what for.
build/mount-guard: GOTAGS = -tags norunwakeup
build/mount-guard: LINKNAME = -checklinkname=0

# Those that people wait for: internal/quickstart says what for.
$(USERBIN:%=build/%): LINKNAME = -E $(MODULE)/internal/quickstart.entry

# The Go tool knows what is up to date; make always asks it.
$(patsubst %,build/%,$(filter-out $(CGO),$(BIN))):
	CGO_ENABLED=0 $(GOBUILD) $(GOTAGS) -ldflags '$(LDFLAGS) $(LINKNAME)' -o $@ ./cmd/$(@F)

$(patsubst %,build/%,$(filter $(CGO),$(BIN))):
	CGO_ENABLED=1 $(GOBUILD) -ldflags '$(LDFLAGS) -linkmode external -extldflags "-static -Wl,--build-id=none"' -o $@ ./cmd/$(@F)

# The program in the kernel, embedded in the daemon. It is kept in the repository, so that
# the Go tool alone can build and vet; Debian 12's clang gives the same bytes everywhere.
CLANG      ?= clang
LLVM_STRIP ?= llvm-strip
BPF         = internal/bpf/agent_sandbox.bpf.o
BPFBUILD    = $(CLANG) -O2 -g -Wall -Werror -target bpfel -mcpu=v3 -ffile-compilation-dir=. -c bpf/agent_sandbox.bpf.c -o $@ && $(LLVM_STRIP) -g $@
$(BPF): $(wildcard bpf/*.c bpf/*.h)
	$(BPFBUILD)

bpf: $(BPF)

build/agent-sandbox-execd: $(BPF)

# Phase A of the denylist's tests, without root: the object is that of the source and has deny_map and lsm/file_open.
build/agent_sandbox.bpf.o:
	mkdir -p build
	$(BPFBUILD)

test: build/agent_sandbox.bpf.o
	cmp build/agent_sandbox.bpf.o $(BPF)
	$(GO) test -count=1 -run TestObject ./internal/bpf

# What a fresh Debian 12 with git, make and Go lacks.
deps:
	test/deps

# Needs `make build`. The daemon's unit is neither enabled nor started here; the package does that.
INSTALL = install -D -m
install:
	for p in $(filter $(BIN),$(USERBIN)); do $(INSTALL) 755 build/$$p $(DESTDIR)$(BINDIR)/$$p || exit 1; done
	for p in $(filter $(BIN),$(ROOTBIN)); do $(INSTALL) 755 build/$$p $(DESTDIR)$(SBINDIR)/$$p || exit 1; done
	for p in $(filter $(BIN),$(HELPERS)); do $(INSTALL) 755 build/$$p $(DESTDIR)$(LIBEXECDIR)/$$p || exit 1; done
	for m in man/*.[1-8]; do $(INSTALL) 644 $$m $(DESTDIR)$(MANDIR)/man$${m##*.}/$${m#man/} || exit 1; done
	for d in README.md docs/design.md docs/security.md docs/backends.md docs/exit-status.md; do $(INSTALL) 644 $$d $(DESTDIR)$(DOCDIR)/agent-sandbox/$${d##*/} || exit 1; done
	$(INSTALL) 644 docs/denylist-security.md $(DESTDIR)$(DOCDIR)/agent-sandbox-exec/denylist-security.md
	for c in completions/*; do $(INSTALL) 644 $$c $(DESTDIR)$(COMPDIR)/$${c#completions/} || exit 1; done
	for a in share/agents/* share/*.example; do $(INSTALL) 644 $$a $(DESTDIR)$(DATADIR)/$${a#share/} || exit 1; done
	$(INSTALL) 644 apparmor/agent-sandbox $(DESTDIR)$(DATADIR)/apparmor
	install -d $(DESTDIR)$(SYSCONFDIR)/agent-sandbox
	# The administrator's list is never written over.
	test -e $(DESTDIR)$(SYSCONFDIR)/agent-sandbox-exec/denylist || $(INSTALL) 644 share/denylist/denylist $(DESTDIR)$(SYSCONFDIR)/agent-sandbox-exec/denylist
	$(INSTALL) 644 systemd/agent-sandbox-execd.service $(DESTDIR)$(UNITDIR)/agent-sandbox-execd.service
	sed -i 's|/usr/sbin/|$(RUNPREFIX)/sbin/|' $(DESTDIR)$(UNITDIR)/agent-sandbox-execd.service

# What install would put there, whatever that is by now, but the configuration of the admin.
uninstall:
	tmp=$$(mktemp -d) && trap 'rm -rf "$$tmp"' EXIT && $(MAKE) -s install DESTDIR="$$tmp" SYSCONFDIR=/.conf && cd "$$tmp" && \
	rm -rf .conf && \
	find . ! -type d | while read -r f; do rm -f "$(DESTDIR)/$$f"; done && \
	find . -depth -type d -path '*agent-sandbox*' | while read -r d; do rmdir "$(DESTDIR)/$$d" 2>/dev/null || :; done

package:
	scripts/package

# Cross-built with gcc-aarch64-linux-gnu and libc6-dev-arm64-cross; what comes out is not run here.
package-arm64:
	DEB_HOST_ARCH=arm64 scripts/package build/arm64

# Everything: first what runs on this machine, then what has to boot Debian's own kernel
# and systemd (test/vm). check-vm is the latter alone, with the long counts.
VMTEST = MUST_WORK=1 $(GO) test -count=1 -parallel 2 ./test/vm
check: deps build package lint test
	test/all
	$(VMTEST) -timeout 35m || { echo "once more: test/vm"; $(VMTEST) -timeout 35m; }

check-vm: deps build package
	LONG=1 $(VMTEST) -timeout 8h

check-fast: build
	$(GO) test -count=1 ./internal/... ./cmd/...

lint:
	test -z "$$(gofmt -l cmd internal test)" || { gofmt -l cmd internal test; exit 1; }
	$(GO) vet ./...
	$(GO) vet -tags vm ./test/denylist ./internal/bpf ./internal/execd
	shellcheck -x -P SCRIPTDIR scripts/package scripts/bench-denylist debian/*.postinst debian/*.postrm test/deps scripts/test.sh test/e2e/run completions/agent-sandbox-exec test/demo test/agents-install completions/agent-sandbox test/vm/run test/vm/lib.sh test/vm/image/build test/vm/image/init test/vm/image/main test/vm/*/*/build test/vm/*/*/main
	for m in man/*.[1-8]; do mandoc -T lint -W warning $$m || exit 1; done

demo: deps build
	test/demo

# Ratios against a peer in the same run; those of the denylist from a virtual machine that
# counts instructions.
bench: build
	$(GO) test -run "^$$" -bench . -benchtime 1x -timeout 30m ./test/bench/...
	scripts/bench-denylist

clean:
	rm -rf build
