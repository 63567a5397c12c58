package sys

import (
	"encoding/hex"

	"golang.org/x/sys/unix"
)

// Random gives n random bytes, at most 256, that nobody can guess: getrandom(2),
// which does not fail for so few. Package crypto/rand gives the same and costs every
// program that links it the start of half the standard library's cryptography.
func Random(n int) []byte {
	b := make([]byte, n)
	if got, err := retry(func() (int, error) { return unix.Getrandom(b, 0) }); err != nil || got != n {
		panic("getrandom: no random bytes")
	}
	return b
}

// RandomHex is n random bytes as hexadecimal digits.
func RandomHex(n int) string { return hex.EncodeToString(Random(n)) }
