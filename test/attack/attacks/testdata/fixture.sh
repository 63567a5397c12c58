# A home as an agent would like to find it.
cd ~
put() { mkdir -p "$(dirname "$1")"; printf '%s\n' "${2:-TOPSECRET}" >"$1"; }

put .ssh/id_rsa; put .aws/credentials; put .gnupg/private.key
put secret.txt; put notes.txt; put vault/deep/inner.txt
put .bashrc '# bashrc'; put .profile '# profile'; put .vimrc '" vimrc'; put .config/git/ignore '*.o'
put .gitconfig "$(printf '[user]\n\tname = n\n\temail = a@b')"
put .config/agent-sandbox-exec/denylist '/etc/shadow'
put tools/bin/tool '# tool'
put .claude/CLAUDE.md '# mine'; put .claude/state.json '{}'
mkdir -p .codex .gemini .cache .local/state/agent-sandbox/sessions
chmod 700 .local/state/agent-sandbox .local/state/agent-sandbox/sessions
put .local/state/agent-sandbox/log/old.log
put "$RUNTIME/secret"; put "/tmp/$ME"; put "/dev/shm/$ME"; "$T" mkshm "$UID"
put "$SRV/ro/file" fixed; put "$SRV/ro/sub/file" fixed; put "$SRV/rw/file" free; put "$SRV/rw/closed/file" fixed

mkdir -p "$P"
cd "$P"
git init -q . ; put f text; git add f; git commit -qm first
put .env; put sub/code.go 'package sub'; put deep/er/key.pem; put private/x; put blocked-file
put vendor/lib/code.c fixed; put .git/hooks/pre-commit '# hook'
mkdir empty; ln -s ~/secret.txt to-secret; ln -s ~/.ssh to-ssh; ln -s deep/er to-deep

put ~/.config/agent-sandbox/sandbox.conf "\
BLOCKED_FILES+=('$HOME/secret.txt' '$P/.env' '$P/deep/er/key.pem' '$P/to-come.env' '$P/new/to-come.env')
EXTRA_BLOCKED_PATHS+=('$P/private' '$P/blocked-file' '$HOME/vault' '$P/dir-to-come')
READONLY_MOUNTS+=('$SRV/ro' '$SRV/attacker' '$SRV/prelude.sh' '$P/vendor/lib' '$SRV/rw/closed')
EXTRA_WRITABLE_PATHS+=('$SRV/rw')
HOME_READONLY+=(tools/bin)"
