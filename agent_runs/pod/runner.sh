#!/bin/sh
# Runs one command inside the agent's container; the sidecar forwards what the command writes.
#
#   sh runner.sh --stdin FILE --out DIR --dir WORKDIR --grace SECONDS [--api-variable NAME]... [--logins DIR]... \
#     [--serve FILE] -- COMMAND ARGS...
#   sh runner.sh --out DIR --work    lists the processes of the run that works (processes.sh)
#
# OpenCode loses output when a pipe's reader is slow, ignores SIGTERM as pid 1, and gives its tools sessions of their
# own. So the command writes to files, is never pid 1, and is ended together with all its descendants.
#
# DIR is shared with the sidecar, which has created there: the files stdout and stderr, the FIFO agent, and ready, which
# holds the address of the pod's API proxy, or none. Without it, after --sidecar-timeout SECONDS, nothing is started.
# The FIFO is held open by this process alone, so the sidecar sees its end, however that comes. Two lines go through it:
#   started
#   result CODE STOPPED_BY GRACE_EXCEEDED ERROR DETAIL MEMORY_PEAK MEMORY_LIMIT
# The last two are bytes of this container, page cache included (cgroup v2 or v1); null: not known, or no limit.
#
# With --serve the script FILE runs COMMAND's server, or COMMAND as an agent, which the sidecar drives (serve.sh, acp.sh).
# While DIR/turn is there it works. A stop waits for its end: the sidecar ends the turn and reads what still comes of it.
# If FILE leaves DIR/rests behind and ends with 0, the pod rests: once nothing of the run is left running, FILE starts
# anew.

scripts=${0%/*}
. "$scripts/processes.sh"
. "$scripts/prepare.sh"

ABORT_TIMEOUT=1200 # centiseconds for the sidecar to end the turn, which takes its driver 10 s at most

run() { # COMMAND ARGS...
    watcher='' found='' code='' stopped=null exceeded=false killed=false error=null detail=null opened=''
    trap 'stop TERM 15' TERM
    trap 'stop INT 2' INT
    trap 'stop HUP 1' HUP
    await_sidecar
    open_files
    make_folders
    # shellcheck disable=SC2086 # words, here and below
    link_logins $logins
    set_home_configuration_aside 2>&7 || fail_start folder .opencode
    { mkdir -p "$dir" && cd "$dir"; } || fail_start workdir --dir
    export PWD
    read -r mark </proc/sys/kernel/random/uuid
    if command -v "$1" >/dev/null 2>&1; then found=1; fi
    [ -z "$serve" ] || set -- sh "$serve" "$out" "$@"
    attend "$@"
    while [ "$code$error" = 0null ] && [ -e "$out/rests" ]; do
        code='' watcher='' killed=false
        attend "$@"
    done
    finish
}

attend() { # COMMAND ARGS...: from its start to the end of all that it has started
    open_code
    watch "$@" &
    watcher=$!
    wait "$watcher"
    collect 137
    case $code$found in
    127) error=command_not_found ;;
    126*) error=command_not_executable ;;
    esac
    end_processes "$LEFTOVER_GRACE" $$ "$mark" "$watcher"
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
    # shellcheck disable=SC2086
    [ "$address" = none ] || set_address "$address" $api_variables
}

open_files() {
    echo $$ >"$out/running" || fail_start out --out
    exec 6>>"$out/stdout" 7>>"$out/stderr"
    [ -r "$stdin" ] || fail_start stdin --stdin
}

open_code() {
    { rm -f "$out/code" && mkfifo "$out/code"; } || fail_start out --out
    exec 8<>"$out/code"
    rm -f "$out/code" # no other process may write to it
}

# The watcher: waits for the command, ignores signals, and writes its exit code to fd 8. A signal that cuts a wait of
# bash short can lose the exit code of the process it waited for, and the next wait for it never ends.
watch() { # COMMAND ARGS...
    trap '' TERM INT HUP
    exec 9>&-
    (
        AGENT_RUN_MARK=$mark AGENT_RUN_RUNNER=$$
        export AGENT_RUN_MARK AGENT_RUN_RUNNER
        trap - TERM INT HUP QUIT
        become "$@"
    ) <"$stdin" >&6 2>&7 6>&- 7>&- 8>&-
    echo $? >&8
}

# What SIGTERM, SIGINT and SIGHUP do: the whole end of the run, so no signal can fall between a check and a wait.
# shellcheck disable=SC2329 # a trap calls it
stop() { # NAME NUMBER
    trap '' TERM INT HUP
    stopped=$1
    watcher=${watcher:-$!} # the signal may come after the fork and before its assignment
    if [ -z "$watcher" ]; then
        code=$((128 + $2))
    elif [ -z "$code" ]; then
        grace=$((grace * 100))
        set_deadline $((grace < ABORT_TIMEOUT ? grace : ABORT_TIMEOUT))
        end=$((now + grace))
        while [ -n "$serve" ] && [ -e "$out/turn" ] && in_time; do nap 0.02; done
        least=$((grace < LEFTOVER_GRACE ? grace : LEFTOVER_GRACE))
        end_processes $((end - now > least ? end - now : least)) $$ "$mark" "$watcher"
        exceeded=$killed
        collect $((128 + $2))
    fi
    finish
}

# Sets the command's exit code: what the watcher reports, or OTHERWISE when it reports none or was killed.
collect() { # OTHERWISE
    set_deadline "$KILL_TIMEOUT"
    while running "$watcher" && in_time; do nap 0.02; done
    echo "$1" >&8
    read -r code <&8
}

finish() {
    rm -f "$out/running"
    read_number memory.peak memory/memory.max_usage_in_bytes && peak=$number
    read_number memory.max memory/memory.limit_in_bytes
    if [ -n "$opened" ]; then echo "result $code $stopped $exceeded $error $detail $peak $number" >&9; fi
    exit "$code"
}

read_number() { # FILE...: sets number, from the first of these files of the cgroup that exists
    number=''
    for file; do { read -r number <"${RUNNER_CGROUP-/sys/fs/cgroup}/$file" && break; } 2>/dev/null; done
    case $number in *[!0-9]* | '' | ???????????????????*) number=null ;; esac
}

# The run cannot start: fixed words and names of variables only.
fail_start() { # ERROR DETAIL
    echo "runner.sh: $1 ($2)" >&2
    code=125 error=$1 detail=$2
    finish
}

usage() {
    echo "runner.sh: $1" >&2
    exit 64
}

stdin=/dev/null out='' dir='' grace=10 sidecar_timeout=60 api_variables='' logins='' serve=''
while [ $# -gt 0 ]; do
    case $1 in
    --) shift && break ;;
    --stdin) stdin=$2 ;;
    --out) out=$2 ;;
    --dir) dir=$2 ;;
    --grace) grace=$2 ;;
    --sidecar-timeout) sidecar_timeout=$2 ;;
    --api-variable) api_variables="$api_variables $2" ;;
    --logins) logins="$logins $2" ;;
    --serve) serve=$2 ;;
    --work)
        list_processes "$out"
        exit
        ;;
    *) usage "unknown argument: $1" ;;
    esac
    [ $# -gt 1 ] || usage "needs a value: $1"
    shift 2
done
[ -n "$out" ] && [ -n "$dir" ] && [ $# -gt 0 ] || usage 'needs --out, --dir and a command after --'
case ${grace:-x}${sidecar_timeout:-x} in *[!0-9]*) usage '--grace and --sidecar-timeout need whole numbers' ;; esac
for word in $api_variables; do
    case $word in [!A-Za-z_]* | *[!A-Za-z0-9_]*) usage '--api-variable needs the name of a variable' ;; esac
done
run "$@"
