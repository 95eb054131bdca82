#!/bin/sh
# Lists the processes of a run, without their arguments: PID PARENT AGE CPU NAME. Times are centiseconds, CPU is with that
# of children that have ended.
#
#   sh work.sh OUT
#
# OUT is the folder shared with the sidecar; the runner's pid is in the file running there.

. "${0%/*}/processes.sh"
exec 2>/dev/null
read -r root <"$1/running" || exit
descendants "$root" '' ''
clock
for pid in $pids; do
    if read -r name <"/proc/$pid/comm" && read -r line <"/proc/$pid/stat"; then
        # shellcheck disable=SC2086 # words; after the name, which may hold anything, the first is the state
        set -- ${line##*) }
        [ $# -ge 20 ] || continue # a name with a line break
        # Ticks of /proc are centiseconds on every Linux that Kubernetes runs on.
        echo "$pid $2 $((now - ${20})) $((${12} + ${13} + ${14} + ${15})) $name"
    fi
done
