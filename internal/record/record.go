// Package record has the line format that the programs of the suite exchange:
// one item a line, and in a value the bytes that would break a line or a
// terminal escaped.
//
// Escapes (contract 4): `\` is `\\`, newline `\n`, tab `\t`; every other
// control byte (below 0x20, and 0x7f) and every byte that is not part of valid
// UTF-8 is `\xHH` with two lower-case hex digits. Unescape accepts exactly what
// Escape writes, so that equal values have equal lines.
package record

import (
	"errors"
	"strings"
	"unicode/utf8"
)

// ErrEscape says that a string is not what Escape writes.
var ErrEscape = errors.New("not a valid escaped value")

const hexDigits = "0123456789abcdef"

// Escape returns s in one line. It is the identity for printable UTF-8 without
// a backslash.
func Escape(s string) string {
	if plain(s) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && n == 1 {
				hexByte(&b, c)
			} else {
				b.WriteString(s[i : i+n])
			}
			i += n
			continue
		}
		switch {
		case c == '\\':
			b.WriteString(`\\`)
		case c == '\n':
			b.WriteString(`\n`)
		case c == '\t':
			b.WriteString(`\t`)
		case control(c):
			hexByte(&b, c)
		default:
			b.WriteByte(c)
		}
		i++
	}
	return b.String()
}

// Unescape is the inverse of Escape; it fails with ErrEscape on anything that
// Escape would not have written.
func Unescape(s string) (string, error) {
	if plain(s) {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '\\' {
			b.WriteByte(s[i])
			continue
		}
		i++
		if i == len(s) {
			return "", ErrEscape
		}
		switch s[i] {
		case '\\':
			b.WriteByte('\\')
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case 'x':
			if i+2 >= len(s) {
				return "", ErrEscape
			}
			hi, lo := strings.IndexByte(hexDigits, s[i+1]), strings.IndexByte(hexDigits, s[i+2])
			if hi < 0 || lo < 0 {
				return "", ErrEscape
			}
			b.WriteByte(byte(hi<<4 | lo))
			i += 2
		default:
			return "", ErrEscape
		}
	}
	out := b.String()
	// One spelling per value: what Escape would write differently is refused.
	if Escape(out) != s {
		return "", ErrEscape
	}
	return out, nil
}

func control(c byte) bool { return c < 0x20 || c == 0x7f }

func plain(s string) bool {
	for i := 0; i < len(s); i++ {
		if control(s[i]) || s[i] == '\\' {
			return false
		}
	}
	return utf8.ValidString(s)
}

func hexByte(b *strings.Builder, c byte) {
	b.WriteString(`\x`)
	b.WriteByte(hexDigits[c>>4])
	b.WriteByte(hexDigits[c&15])
}
