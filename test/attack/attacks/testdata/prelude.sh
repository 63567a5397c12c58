# What the attacks have in common: sourced before each.
exec 2>/dev/null
set +e
# leaks COMMAND...: a secret shows in its output
leaks() { timeout 10 "$@" </dev/null | grep -aq TOPSECRET; }
# evil FILE...: an attacker's text lies in one of the files
evil() { grep -aqs evil "$@"; }
