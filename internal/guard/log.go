package guard

import (
	"time"

	"agent-sandbox/internal/sessionlog"
)

// NewLog is the guard's log of a session: log/<id>.log in the state folder.
func NewLog(stateHome string, uid int, id string) *sessionlog.Log {
	return sessionlog.New(sessionlog.Options{
		StateHome: stateHome, UID: uid, Folder: []string{"agent-sandbox", "log"}, ID: id,
		Level: sessionlog.Info, Keep: 7 * 24 * time.Hour,
		Max: 1 << 20, // a host that renames a file a thousand times a second must not fill the disk
	})
}
