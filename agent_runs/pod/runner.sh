#!/bin/sh
# Runs one command inside the agent's container; the sidecar forwards what the command writes.
#
#   sh runner.sh --stdin FILE --out DIR --dir WORKDIR --grace SECONDS [--api-variable NAME]... [--logins DIR]... \
#     [--serve FILE] -- COMMAND ARGS...
#   sh runner.sh --out DIR --processes    names the processes of the run, without their arguments
#   sh runner.sh --out DIR --work         the same, each as PID PARENT AGE CPU NAME; times in centiseconds, CPU with that
#                                         of children that have ended
#
# OpenCode loses output when a pipe's reader is slow, ignores SIGTERM as pid 1, and gives its tools sessions of their
# own. So the command writes to files, is never pid 1, and is ended together with all its descendants.
#
# DIR is shared with the sidecar, which has created there: the files stdout and stderr, the FIFO agent, and ready, which
# holds the address of the pod's API proxy, or none. That address becomes PAPERCLIP_API_URL and the beginning of each
# variable NAME. Without the sidecar, after --sidecar-timeout SECONDS, the command is not started.
#
# With --serve the script FILE runs COMMAND's server, which the sidecar drives (serve.sh). While DIR/turn is there the
# server works; a stop waits for its end for a moment, because the sidecar tells the server of it.
#
# OpenCode has its logins below XDG_DATA_HOME, which ends with the pod. Links there lead to the first folder of --logins
# that has them, else to the first of all, where new ones are kept.
#
# The FIFO is held open by this process alone, so the sidecar sees its end, however that comes. Two lines go through it:
#   started
#   result CODE STOPPED_BY GRACE_EXCEEDED ERROR DETAIL MEMORY_PEAK MEMORY_LIMIT
# The last two are bytes of this container, page cache included (cgroup v2 or v1); null: not known, or no limit.
#
# Needs a POSIX shell, /proc, and awk cat env grep ln mkdir mkfifo rm sleep; an executable busybox at $RUNNER_BUSYBOX
# (/agent-run/bin/busybox) replaces those that are missing.

KILL_TIMEOUT=200   # centiseconds for processes to end after SIGKILL
LEFTOVER_GRACE=200 # centiseconds between SIGTERM and SIGKILL for what outlives the command
ABORT_TIMEOUT=200  # centiseconds for the sidecar to end the server's turn

# ---- processes ----

# Sets pids: every living descendant of ROOT and of processes that carry MARK, without the watcher and our own helpers.
# Orphans become our children when we are pid 1; elsewhere their environment identifies them.
descendants() { # ROOT MARK
    marked=$([ -z "$2" ] || grep -lzF "AGENT_RUN_MARK=$2" /proc/[0-9]*/environ 2>/dev/null)
    # shellcheck disable=SC2016 # the dollars are awk's
    pids=$({
        read -r helper _ </proc/self/stat # this subshell; a snapshot may lack the processes it is about to start
        cat /proc/[0-9]*/status 2>/dev/null | awk -v helper="$helper" \
            -v root="$1" -v watcher="$watcher" -v marked="$marked" '
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
        }
        /^State:/ { state = $2 }
        /^Pid:/ { pid = $2 }
        /^PPid:/ { parent[pid] = $2; if (state != "Z" && state != "X") alive[pid] }
        END {
            for (pid in alive) if (pid != watcher && ours(pid)) print pid
        }'
    })
}

running() { # PID: one of ours; a zombie does not run
    read -r line 2>/dev/null <"/proc/$1/stat" || return 1
    case ${line##*) } in Z*) return 1 ;; esac
}

clock() { # sets now, centiseconds
    read -r now _ </proc/uptime
    now=$((${now%.*} * 100 + 1${now#*.} - 100))
}

nap() { # SECONDS
    sleep "$1" 2>/dev/null || sleep 1
}

# SIGTERM once to each, SIGKILL to what is left after the deadline.
end_processes() { # CENTISECONDS
    clock
    deadline=$((now + $1)) signalled=' '
    while descendants $$ "$mark" && [ -n "$pids" ]; do
        for pid in $pids; do
            case $signalled in *" $pid "*) continue ;; esac
            signalled="$signalled$pid "
            kill -TERM "$pid" 2>/dev/null
        done
        clock
        if [ "$now" -ge $((deadline + KILL_TIMEOUT)) ]; then
            error=unkillable
            return
        elif [ "$now" -ge "$deadline" ]; then
            killed=true
            # shellcheck disable=SC2086 # numbers
            kill -KILL $pids 2>/dev/null
        fi
        nap 0.05
    done
}

# ---- the run ----

# What SIGTERM, SIGINT and SIGHUP do: the whole end of the run, so no signal can fall between a check and a wait.
# shellcheck disable=SC2329 # a trap calls it
stop() { # NAME NUMBER
    trap '' TERM INT HUP
    stopped=$1
    watcher=${watcher:-$!} # the signal may come after the fork and before its assignment
    if [ -z "$watcher" ]; then
        code=$((128 + $2))
    elif [ -z "$code" ]; then
        await_abort
        end_processes $((grace * 100))
        exceeded=$killed
        collect $((128 + $2))
    fi
    finish
}

# shellcheck disable=SC2329 # called by stop, which a trap calls
await_abort() {
    clock
    deadline=$((now + (grace * 100 < ABORT_TIMEOUT ? grace * 100 : ABORT_TIMEOUT)))
    while [ -n "$serve" ] && [ -e "$out/turn" ] && [ "$now" -lt "$deadline" ]; do
        nap 0.02
        clock
    done
}

# Sets the command's exit code: what the watcher reports, or OTHERWISE when it reports none or was killed.
collect() { # OTHERWISE
    clock
    deadline=$((now + KILL_TIMEOUT))
    while running "$watcher" && [ "$now" -lt "$deadline" ]; do
        nap 0.02
        clock
    done
    echo "$1" >&8
    read -r code <&8
}

read_number() { # FILE...: sets number, from the first of these files that exists
    number=''
    for file; do { read -r number <"$cgroup/$file" && break; } 2>/dev/null; done
    case $number in *[!0-9]* | '' | ???????????????????*) number=null ;; esac
}

finish() {
    rm -f "$out/running"
    read_number memory.peak memory/memory.max_usage_in_bytes && peak=$number
    read_number memory.max memory/memory.limit_in_bytes
    if [ -n "$opened" ]; then echo "result $code $stopped $exceeded $error $detail $peak $number" >&9; fi
    exit "$code"
}

# The run cannot start: fixed words and names of variables only.
fail_start() { # ERROR DETAIL
    echo "runner.sh: $1 ($2)" >&2
    code=125 error=$1 detail=$2
    finish
}

absolute() {
    case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac
}

usage() {
    echo "runner.sh: $1" >&2
    exit 64
}

use_busybox_for() { # TOOL...: busybox for what the container lacks
    for tool; do
        command -v "$tool" >/dev/null 2>&1 || eval "$tool() { \"\$busybox\" $tool \"\$@\"; }"
    done
}

await_sidecar() {
    tries=0
    until { read -r address _ <"$out/ready"; } 2>/dev/null; do
        tries=$((tries + 1))
        [ "$tries" -le $((sidecar_timeout * 50)) ] || fail_start sidecar --out
        nap 0.02
    done
    exec 9<>"$out/agent" && opened=1
    echo started >&9
    [ "$address" != none ] || return 0
    PAPERCLIP_API_URL=$address
    export PAPERCLIP_API_URL
    for name in $api_variables; do
        eval "$name=\$address\${$name:-}"
        export "${name?}"
    done
}

link_login() { # FILE
    kept=''
    for folder in $logins; do
        kept=${kept:-$folder}
        if [ -r "$folder/$1" ]; then kept=$folder && break; fi
    done
    [ -n "$kept" ] || return 0
    mkdir -p "$kept" "$XDG_DATA_HOME/opencode" && ln -s "$kept/$1" "$XDG_DATA_HOME/opencode/$1"
}

prepare_folders() {
    { rm -f "$out/code" && echo $$ >"$out/running" && mkfifo "$out/code"; } || fail_start out --out
    exec 6>>"$out/stdout" 7>>"$out/stderr" 8<>"$out/code"
    rm -f "$out/code" # no other process may write to it
    [ -r "$stdin" ] || fail_start stdin --stdin
    [ -z "$HOME" ] || mkdir -p "$HOME" || :
    for name in XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_CACHE_HOME TMPDIR; do
        eval "folder=\${$name:-}"
        [ -z "$folder" ] || mkdir -p "$folder" || fail_start folder "$name"
    done
    if [ -n "${XDG_DATA_HOME:-}" ]; then
        for name in auth.json mcp-auth.json; do link_login "$name" 2>/dev/null; done
    fi
    case ${OPENCODE_DB:-} in */*) mkdir -p "${OPENCODE_DB%/*}/" || fail_start folder OPENCODE_DB ;; esac
    { mkdir -p "$dir" && cd "$dir"; } || fail_start workdir --dir
    export PWD
}

# The watcher: waits for the command, ignores signals, and writes its exit code to fd 8. A signal that cuts a wait of
# bash short can lose the exit code of the process it waited for, and the next wait for it never ends.
watch() {
    trap '' TERM INT HUP
    exec 9>&-
    (
        AGENT_RUN_MARK=$mark
        export AGENT_RUN_MARK
        # A shell makes background commands ignore SIGINT, and their tools inherit that; undo it where possible.
        trap - TERM INT HUP QUIT
        [ -z "$default_signals" ] || exec env --default-signal=INT,QUIT "$@"
        exec "$@"
    ) <"$stdin" >&6 2>&7 6>&- 7>&- 8>&-
    echo $? >&8
}

run() {
    watcher='' found='' code='' stopped=null exceeded=false killed=false error=null detail=null opened='' default_signals=''
    trap 'stop TERM 15' TERM
    trap 'stop INT 2' INT
    trap 'stop HUP 1' HUP
    await_sidecar
    prepare_folders
    read -r mark </proc/sys/kernel/random/uuid
    if command -v "$1" >/dev/null 2>&1; then found=1; fi
    if [ -n "$found" ] && env --default-signal=INT,QUIT true 2>/dev/null; then default_signals=1; fi
    [ -z "$serve" ] || set -- sh "$serve" "$out" "$@"
    watch "$@" &
    watcher=$!
    wait "$watcher"
    collect 137
    case $code$found in
    127) error=command_not_found ;;
    126*) error=command_not_executable ;;
    esac
    end_processes "$LEFTOVER_GRACE"
    finish
}

processes() {
    read -r root <"$out/running" || return
    watcher=''
    descendants "$root" ''
    for pid in $pids; do
        if read -r name <"/proc/$pid/comm"; then echo "$name"; fi
    done
} 2>/dev/null

# Ticks of /proc are centiseconds on every Linux that Kubernetes runs on.
work() {
    read -r root <"$out/running" || return
    watcher=''
    descendants "$root" ''
    clock
    for pid in $pids; do
        if read -r name <"/proc/$pid/comm" && read -r line <"/proc/$pid/stat"; then
            # shellcheck disable=SC2086 # words; after the name, which may hold anything, the first is the state
            set -- ${line##*) }
            [ $# -ge 20 ] || continue # a name with a line break
            echo "$pid $2 $((now - ${20})) $((${12} + ${13} + ${14} + ${15})) $name"
        fi
    done
} 2>/dev/null

busybox=${RUNNER_BUSYBOX:-/agent-run/bin/busybox} cgroup=${RUNNER_CGROUP-/sys/fs/cgroup}
[ ! -x "$busybox" ] || use_busybox_for awk cat env grep ln mkdir mkfifo rm sleep
stdin=/dev/null out='' dir='' grace=10 sidecar_timeout=60 api_variables='' logins='' serve=''
while [ $# -gt 0 ]; do
    case $1 in
    --stdin) stdin=$(absolute "$2") && shift 2 ;;
    --out) out=$(absolute "$2") && shift 2 ;;
    --dir) dir=$(absolute "$2") && shift 2 ;;
    --grace) grace=$2 && shift 2 ;;
    --sidecar-timeout) sidecar_timeout=$2 && shift 2 ;;
    --api-variable) api_variables="$api_variables $2" && shift 2 ;;
    --serve) serve=$(absolute "$2") && shift 2 ;;
    --logins) logins="$logins $2" && shift 2 ;;
    --processes)
        processes
        exit
        ;;
    --work)
        work
        exit
        ;;
    --) shift && break ;;
    *) usage "unknown argument: $1" ;;
    esac
done
[ -n "$out" ] && [ -n "$dir" ] && [ $# -gt 0 ] || usage 'needs --out, --dir and a command after --'
for word in "$grace" "$sidecar_timeout"; do
    case $word in *[!0-9]* | '') usage '--grace and --sidecar-timeout need whole numbers' ;; esac
done
for word in $api_variables; do
    case $word in [!A-Za-z_]* | *[!A-Za-z0-9_]*) usage '--api-variable needs the name of a variable' ;; esac
done
run "$@"
