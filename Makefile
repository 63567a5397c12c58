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
HELPERS := mount-repair mount-guard chaperon

all: build

build: $(BIN:%=build/%)

.PHONY: all build deps install uninstall check check-fast lint bench demo clean $(BIN:%=build/%)

# The Go tool knows what is up to date; make always asks it.
$(patsubst %,build/%,$(filter-out $(CGO),$(BIN))):
	CGO_ENABLED=0 $(GOBUILD) -ldflags '$(LDFLAGS)' -o $@ ./cmd/$(@F)

$(patsubst %,build/%,$(filter $(CGO),$(BIN))):
	CGO_ENABLED=1 $(GOBUILD) -ldflags '$(LDFLAGS) -linkmode external -extldflags "-static -Wl,--build-id=none"' -o $@ ./cmd/$(@F)

# What a fresh Debian 12 with git, make and Go lacks.
deps:
	test/deps

check: deps build lint
	MUST_WORK=1 $(GO) test -count=1 -timeout 60m ./...

check-fast: build
	$(GO) test -count=1 ./internal/... ./cmd/...

lint:
	test -z "$$(gofmt -l cmd internal test)" || { gofmt -l cmd internal test; exit 1; }
	$(GO) vet ./...
	shellcheck -x -P SCRIPTDIR test/deps test/vm/run test/vm/lib.sh test/vm/image/build test/vm/image/init test/vm/image/main test/vm/suites/*/build test/vm/suites/*/main
	for m in man/*.[1-8]; do mandoc -T lint -W warning $$m || exit 1; done

clean:
	rm -rf build
