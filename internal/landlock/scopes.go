// Package landlock confines by Landlock rules, landlock(7): the scope-only
// ruleset that goes around a bwrap session, and the backend for hosts where
// neither bwrap nor firejail can run.
package landlock

import (
	"errors"
	"fmt"

	"agent-sandbox/internal/sys"
)

// ErrUnsupported says that the kernel's Landlock lacks what was asked for; its
// text has the version there is.
var ErrUnsupported = errors.New("not supported by this kernel's landlock")

// ScopesABI is the first version with scopes: Linux 6.12.
const ScopesABI = 6

const (
	scopeAbstractSocket = 1 << 0 // LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET
	scopeSignal         = 1 << 1 // LANDLOCK_SCOPE_SIGNAL
)

// ABI returns the version of Landlock the kernel has. An error wraps
// ErrUnsupported and says whether it was not built in or is switched off.
func ABI() (int, error) {
	abi, err := sys.LandlockABI()
	if err != nil {
		return 0, fmt.Errorf("landlock: %w (%v)", ErrUnsupported, err)
	}
	return abi, nil
}

// RestrictScopes keeps the calling thread, and all that it starts, from connecting
// to abstract unix sockets made outside and from signalling processes outside. It
// takes no right on files away, so mounts and nested sandboxes work under it. It
// sets no_new_privs. It fails with ErrUnsupported below version 6 (Linux 6.12).
func RestrictScopes() error {
	abi, err := ABI()
	if err != nil {
		return err
	}
	if abi < ScopesABI {
		return fmt.Errorf("scopes of abstract sockets and signals: %w (version %d, need %d)", ErrUnsupported, abi, ScopesABI)
	}
	fd, err := sys.LandlockRuleset(0, 0, scopeAbstractSocket|scopeSignal)
	if err != nil {
		return err
	}
	defer sys.Close(fd)
	if err := sys.SetNoNewPrivs(); err != nil {
		return err
	}
	return sys.LandlockRestrict(fd)
}

// RestrictWhereScoped is RestrictScopes where the kernel has scopes; where it has
// none, which the launcher has warned of, it does nothing.
func RestrictWhereScoped() error {
	err := RestrictScopes()
	if errors.Is(err, ErrUnsupported) {
		return nil
	}
	return err
}
