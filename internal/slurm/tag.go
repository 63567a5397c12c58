package slurm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"strings"
)

// A tag in a job's comment says whose it is. Clients' comments are in it in a
// form that has neither a space nor an equals sign, so that none can look like
// a tag or end one.
//
//	agent-sandbox/1 s=SESSION p=PROJECT-DIGEST c=COMMENT
const tagHead = "agent-sandbox/1 "

var tagRE = regexp.MustCompile(`agent-sandbox/1 s=([0-9a-f]{8}) p=([0-9a-f]{16}) c=([A-Za-z0-9_.,:%-]*)`)

// maxComment is Slurm's own limit of a comment (MAX_COMMENT_LEN).
const maxComment = 1024

// digest is what a tag has of a project.
func digest(project string) string {
	sum := sha256.Sum256([]byte(project))
	return hex.EncodeToString(sum[:8])
}

// tag makes the comment of a job of the session.
func (s *Session) tag(comment string) (string, error) { return tag(s.ID, digest(s.Project), comment) }

func tag(session, project, comment string) (string, error) {
	t := tagHead + "s=" + session + " p=" + project + " c=" + encode(comment)
	if !tagRE.MatchString(t) {
		return "", fmt.Errorf("the session has no id that can be in a tag: %s", quote(session))
	}
	if len(t) > maxComment {
		return "", refuse("letters and digits take one byte, all else three", "the comment is too long: %d bytes of %d", len(t), maxComment)
	}
	return t, nil
}

// encode writes all but letters, digits and _ . , : - as %XX.
func encode(s string) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("_.,:-", c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func decode(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			if raw, err := hex.DecodeString(s[i+1 : i+3]); err == nil {
				b.Write(raw)
				i += 2
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// untag puts clients' own comments where a text has tags; an empty one is shown
// as Slurm shows it there.
func untag(s, empty string) string {
	return tagRE.ReplaceAllStringFunc(s, func(t string) string {
		if c := decode(tagRE.FindStringSubmatch(t)[3]); c != "" {
			return c
		}
		return empty
	})
}
