#!/bin/bash
# Checks an installed agent-sandbox-exec from end to end. As root; the users that are
# tried are those with the uids ASE_UID (default: the first ordinary one) and, for the
# isolation between users, ASE_UID2. Ends with ALL PASS or names what failed.
set -u
here=$(cd "$(dirname "$0")" && pwd)
exec "$here/../test/e2e/run"
