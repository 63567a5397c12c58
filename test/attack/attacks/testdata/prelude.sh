# What the attacks have in common: sourced before each.
exec 2>/dev/null
set +e
# leaks COMMAND...: a secret shows in its output
leaks() { timeout 10 "$@" </dev/null | grep -aq TOPSECRET; }
# evil FILE...: an attacker's text lies in one of the files
evil() { grep -aqs evil "$@"; }
# lasting COMMAND...: it works for longer than the guard takes to repair a mount that
# a useradd on the host has broken
lasting() { for _ in 1 2 3 4; do "$@" || return; sleep 0.5; done; }
