# shellcheck shell=bash
# For the main of a suite: results in the form test/vm/expect reads. A build script
# copies this file into its folder; `main` sources it from there.

# check NAME COMMAND...: ok where the command succeeds; its output is the reason where
# it does not. A function is run with `set -e`: it fails with its first failing command.
check() {
	local name=$1 out status
	shift
	# Not in a condition: there, bash would ignore -e.
	out=$(set -e; "$@" 2>&1)
	status=$?
	if [ "$status" = 0 ]; then
		ok "$name"
	else
		notok "$name" "status $status: $out"
	fi
}

ok() { echo "ok $1" | tee -a /t/out/results; }

# notok NAME WHY: on one line, the end of a long reason.
notok() { echo "not ok $1: $(printf %s "$2" | tail -c 600 | tr '\n' '|')" | tee -a /t/out/results; }

# as USER COMMAND...: runs a command as an ordinary user of the guest with a login's
# clean environment and XDG_RUNTIME_DIR, in the current folder.
as() {
	local user=$1 uid
	shift
	uid=$(id -u "$user")
	mkdir -p "/run/user/$uid"
	chown "$user:" "/run/user/$uid"
	chmod 700 "/run/user/$uid"
	env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME="/home/$user" USER="$user" LOGNAME="$user" \
		SHELL=/bin/bash LANG=C.UTF-8 TERM=dumb XDG_RUNTIME_DIR="/run/user/$uid" \
		setpriv --reuid "$user" --regid "$user" --init-groups "$@"
}
