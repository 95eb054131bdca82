# shellcheck shell=sh
# Which processes are a run's, and how they are ended. Sourced by the other scripts.
#
# Needs a POSIX shell, /proc, and the tools below; an executable busybox at $RUNNER_BUSYBOX (/agent-run/bin/busybox)
# replaces those that are missing.

busybox=${RUNNER_BUSYBOX:-/agent-run/bin/busybox}
for tool in awk cat env grep ln mkdir mkfifo rm sleep; do
    [ -x "$busybox" ] || break
    command -v "$tool" >/dev/null 2>&1 || eval "$tool() { \"\$busybox\" $tool \"\$@\"; }"
done
KILL_TIMEOUT=200 # centiseconds for processes to end after SIGKILL
# shellcheck disable=SC2034 # the callers read it
LEFTOVER_GRACE=200 # centiseconds between SIGTERM and SIGKILL for what outlives the command, or its turn

# Sets pids: every living descendant of ROOT and of processes that carry MARK, without the processes EXCEPT and our own
# helpers. Orphans become the runner's children when it is pid 1; elsewhere their environment identifies them.
descendants() { # ROOT MARK "EXCEPT..."
    marked=$([ -z "$2" ] || grep -lzF "AGENT_RUN_MARK=$2" /proc/[0-9]*/environ 2>/dev/null)
    # shellcheck disable=SC2016,SC2034 # the dollars are awk's; the callers read pids
    pids=$({
        read -r helper _ </proc/self/stat # this subshell; a snapshot may lack the processes it is about to start
        cat /proc/[0-9]*/status 2>/dev/null | awk -v helper="$helper" \
            -v root="$1" -v except="$3" -v marked="$marked" '
        function ours(pid,   steps) {
            while (pid in parent && steps++ < 10000) {
                if (pid == helper) return 0
                if (parent[pid] == root || pid in carrier) return pid != root
                pid = parent[pid]
            }
            return 0
        }
        BEGIN {
            count = split(marked, paths, "\n")
            for (i = 1; i <= count; i++) { split(paths[i], names, "/"); carrier[names[3]] }
            count = split(except, names, " ")
            for (i = 1; i <= count; i++) stays[names[i]]
        }
        /^State:/ { state = $2 }
        /^Pid:/ { pid = $2 }
        /^PPid:/ { parent[pid] = $2; if (state != "Z" && state != "X") alive[pid] }
        END {
            for (pid in alive) if (!(pid in stays) && ours(pid)) print pid
        }'
    })
}

# Becomes the command. A shell makes background commands ignore SIGINT and SIGQUIT, and their tools inherit that: undone
# where possible.
become() { # COMMAND ARGS...
    if command -v "$1" >/dev/null 2>&1 && env --default-signal=INT,QUIT true 2>/dev/null; then
        set -- env --default-signal=INT,QUIT "$@"
    fi
    exec "$@"
}

running() { # PID: one of ours; a zombie does not run
    read -r line 2>/dev/null <"/proc/$1/stat" || return 1
    case ${line##*) } in Z*) return 1 ;; esac
}

clock() { # sets now, centiseconds
    read -r now _ </proc/uptime
    now=$((${now%.*} * 100 + 1${now#*.} - 100))
}

set_deadline() { # CENTISECONDS
    clock
    deadline=$((now + $1))
}

in_time() { # whether the deadline is still to come
    clock
    [ "$now" -lt "$deadline" ]
}

nap() { # SECONDS
    sleep "$1" 2>/dev/null || sleep 1
}

# Sets pid to the number in FILE, which a process writes there as soon as it starts; fails if none has after a minute.
await_pid() { # FILE
    set_deadline 6000
    until read -r pid 2>/dev/null <"$1"; do
        in_time || return
        nap 0.05
    done
}

# SIGTERM, and SIGKILL from two seconds later on. Only that process.
end_program() { # PID
    set_deadline 200
    kill -TERM "$1" 2>/dev/null
    while kill -0 "$1" 2>/dev/null; do
        in_time || kill -KILL "$1" 2>/dev/null
        nap 0.05
    done
}

# SIGTERM once to each descendant, SIGKILL to what is left after some time. Sets killed to true if that was needed, and
# error if some process outlives even that by KILL_TIMEOUT.
end_processes() { # CENTISECONDS ROOT MARK "EXCEPT..."
    set_deadline "$1"
    signalled=' ' last=''
    while descendants "$2" "$3" "$4" && [ -n "$pids" ]; do
        for pid in $pids; do
            case $signalled in *" $pid "*) continue ;; esac
            signalled="$signalled$pid "
            kill -TERM "$pid" 2>/dev/null
        done
        if ! in_time; then
            # shellcheck disable=SC2034 # the callers read it
            killed=true
            # shellcheck disable=SC2086 # numbers
            kill -KILL $pids 2>/dev/null
            last=${last:-$((now + KILL_TIMEOUT))} # from the first SIGKILL on: a busy machine lists processes slowly
            # shellcheck disable=SC2034 # as above
            [ "$now" -lt "$last" ] || { error=unkillable && return; }
        fi
        nap 0.05
    done
}

# Lists the processes of a run, without their arguments: PID PARENT AGE CPU NAME. Times are centiseconds, CPU is with that
# of children that have ended. The runner's pid is in OUT/running.
list_processes() { # OUT
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
}
