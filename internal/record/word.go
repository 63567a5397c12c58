package record

import "strings"

// Letters and digits of ASCII, for Word.
const (
	Lower  = "abcdefghijklmnopqrstuvwxyz"
	Upper  = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	Digits = "0123456789"
)

// Word says whether s is one or more of the bytes in chars. Not a regular expression:
// compiling one costs a program more than all its other beginning.
func Word(s, chars string) bool {
	return s != "" && strings.Trim(s, chars) == ""
}

// Variable says whether s is a name that a variable of the environment can have:
// letters, digits and underscores, no digit first.
func Variable(s string) bool {
	return Word(s, Upper+Lower+Digits+"_") && !Word(s[:1], Digits)
}
