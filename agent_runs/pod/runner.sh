#!/bin/sh
# Runs one command inside the agent's container and writes all of its output as numbered frames.
#
#   sh runner.sh --stdin FILE --out DIR --dir WORKDIR --grace SECONDS [--api DIR [--api-variable NAME]...] -- COMMAND ARGS...
#   sh runner.sh --out DIR --replay FIRST LAST   repeats frames from the files, for a reader that missed them
#   sh runner.sh --out DIR --processes           names the processes of the run, without their arguments
#   sh runner.sh --out DIR --acknowledge         reports that all frames are stored: none will be requested again
#
# OpenCode loses output when a pipe's reader is slow, ignores SIGTERM as pid 1, and gives its tools sessions of their
# own. So the command writes to files, is never pid 1, and is ended together with all its descendants. A second
# process, the forwarder, turns the files into frames on our stdout; a stalled reader stalls only that process.
#
# A frame is one line of at most 8 KiB: number, stream, mark, blank, payload.
#   number  1, 2, 3, ... over all streams
#   stream  o stdout, e stderr, h the first frame, x the last; O, E: the same with NUL written \0, backslash \\, and
#           a CR at the end \r, because container runtimes drop that one
#   mark    . ends a line, + the line continues, - ends a line that has no newline
# The payload of h and x is JSON. What the command writes is only ever payload.
#
# After the last frame a run whose log may have been rotated waits up to --acknowledge-timeout SECONDS for --acknowledge,
# because the files cannot be read once the container has ended. Less output than --acknowledge-above BYTES is never
# rotated.
#
# With --api the command reaches Paperclip through a proxy in another container (api_proxy.py). The run waits up to
# --api-timeout SECONDS for the proxy's address, which becomes PAPERCLIP_API_URL and the beginning of each variable
# NAME; without it the command is not started. The lifetime FIFO there, which this process keeps open and the command
# does not inherit, shows the proxy that this container runs, however it ends.
#
# Files in DIR: stdout, stderr; index: one line per batch of frames, "first last stream from to lines open", once it is
# written, so a frame that a reader has may not be in it yet;
# runner-stderr: errors of the shell that runs this script; acknowledged: all frames are stored.
# Needs a POSIX shell, /proc, and awk cat dd env grep ls mkdir mkfifo rm sha256sum sleep tr; an executable busybox at
# $RUNNER_BUSYBOX (/agent-run/bin/busybox) replaces those that are missing.
#
# shellcheck disable=SC3045 # read -t is used only where a test showed that this shell has it

BLOCK=262144       # bytes per read; a batch is at most four
KILL_TIMEOUT=200   # centiseconds for processes to end after SIGKILL
LEFTOVER_GRACE=200 # centiseconds between SIGTERM and SIGKILL for what outlives the command
DRAIN_TIMEOUT=500  # centiseconds for a stalled reader after a stop

# ---- frames ----

# Input: one batch, NUL shown as byte 255, then a dot that shows whether the last line is whole. Where a byte 255
# is ambiguous nothing is framed, and the batch comes a second time as `size` bytes, a dot and a newline, and once more with
# NUL shown as byte 1: where the copies differ there was a NUL. (busybox awk takes NUL for the end of a line.)
# Answers on stderr: frames, lines, bytes, 1 if the last line is open; or the word doubt and the size of the batch.
# shellcheck disable=SC2016 # the dollars are awk's
FRAMES='
function frame(kind, mark, text) { out[++n] = (first + n - 1) kind mark " " text }
function escaped(text, copy,   fields, count, at, i, result) {
    count = split(text, fields, "\377")
    for (i = 1; i <= count; i++) {
        at += length(fields[i]) + 1
        gsub(/\\/, "\\\\&", fields[i])
        result = result fields[i]
        if (i < count) result = result (substr(copy, at, 1) == "\001" ? "\\0" : "\377")
    }
    if (ends_in_cr(result)) result = substr(result, 1, length(result) - 1) "\\r"
    return result
}
function ends_in_cr(text) { return substr(text, length(text)) == "\r" }
function part(text, copy, mark) {
    if ((text "") == (copy "") && !ends_in_cr(text)) frame(stream, mark, text)
    else frame(toupper(stream), mark, escaped(text, copy))
}
function line(text, copy, mark,   i, size, most) {
    size = length(text); bytes += size
    most = (text "") == (copy "") && !index(text, "\r") ? 8000 : 4000
    for (i = 1; size - i >= most; i += most) part(substr(text, i, most), substr(copy, i, most), "+")
    part(substr(text, i), substr(copy, i), mark)
    if (mark == ".") lines++
}
function rest(text, copy) {
    text = substr(text, 1, length(text) - 1)
    if (text != "") { line(text, substr(copy, 1, length(copy) - 1), "+"); unfinished = 1 }
}
size && !whole {
    copies[++count] = $0; seen += length($0) + 1
    if (seen == size + 2) whole = 1
    next
}
size { if (++at < count) line(copies[at], $0, "."); else rest(copies[at], $0); next }
{ seen += length($0) + 1 }
index($0, "\377") { doubt = 1 }
doubt { next }
NR > 1 { line(held, held, ".") }
{ held = $0 }
END {
    if (doubt) { print "doubt", seen - 2 > "/dev/stderr"; exit }
    if (!size) rest(held, held)
    for (i = 1; i <= n; i++) print out[i]
    print n + 0, lines + 0, bytes + lines, unfinished + 0 > "/dev/stderr"
}'

framed() { # FIRST STREAM SIZE; stdin: a batch as described above; frames go to fd 5, the answer to stdout
    awk -v first="$1" -v stream="$2" -v size="$3" "$FRAMES" 2>&1 >&5
}

blocks() { # FD BYTES COUNT: reads from where the file stands
    dd bs="$2" count="$3" 2>/dev/null <&"$1"
}

seek() { # FD OFFSET
    eval "exec $1</proc/self/fd/$1"
    dd bs=1 skip="$2" count=0 2>/dev/null <&"$1"
}

# One batch of a file that stands at FROM becomes frames. Sets answer: "frames lines bytes open", nothing if our
# reader has closed it.
convert() { # STREAM FD FROM FIRST BYTES COUNT
    answer=$({ blocks "$2" "$5" "$6"; printf .; } | tr '\000' '\377' | framed "$4" "$1" 0)
    case $answer in doubt*) ;; *) return ;; esac
    size=${answer#doubt }
    seek "$2" "$3"
    answer=$({
        blocks "$2" "$size" 1 | tr '\000' '\377'
        printf '.\n'
        seek "$2" "$3"
        blocks "$2" "$size" 1 | tr '\000' '\001'
        printf .
    } | framed "$4" "$1" "$size")
}

# ---- the forwarder ----

# State per stream s: at_s bytes forwarded, lines_s, open_s (1 in the middle of a line). `number` is the last frame's.

forward() {
    trap '' TERM INT HUP
    LC_ALL=C
    export LC_ALL
    exec 5>&1
    restore_position
    if [ "$number" -eq 0 ]; then
        echo '1h. {"format":1}'
        number=1
        index_batch 1 1 h 0 0
    fi
    quiet=0 woken=''
    until ended; do
        moved=0
        if has_grown o 6; then batch o 3; fi
        if has_grown e 7; then batch e 4; fi
        if [ "$moved" -gt 0 ]; then
            quiet=0
        else
            quiet=$((quiet + 1))
            kill -0 $$ || exit 4 # the supervisor was killed
            pause
        fi
    done
    drain o 3
    drain e 4
    last_frame
    exit 0
}

# Restores from the index where an earlier forwarder of this run stopped: it dies when no process can be started.
restore_position() {
    # shellcheck disable=SC2034 # read by eval
    number=0 at_o=0 lines_o=0 open_o=0 at_e=0 lines_e=0 open_e=0 behind_o='' behind_e='' truncated=''
    while read -r _ last stream _ to lines open; do
        number=$last
        case $stream in
        [oe]) eval "at_$stream=$to lines_$stream=$lines open_$stream=$open" ;;
        z?) eval "truncated=1 at_${stream#z}=0" ;;
        esac
    done <"$out/index"
    seek 3 "$at_o"
    seek 4 "$at_e"
}

index_batch() { # FIRST LAST STREAM FROM TO: records a batch; or that the stream's file was emptied, as the stream zo or ze
    eval "lines=\${lines_$3:-0} open=\${open_$3:-0}"
    echo "$1 $2 $3 $4 $5 $lines $open" 2>/dev/null >>"$out/index"
}

# Whether the command's file has grown. The offset of its own descriptor shows it without starting a process; what
# others appended through descriptors of their own is checked every now and then.
has_grown() { # STREAM WRITING-FD
    eval "from=\$at_$1"
    read -r _ position 2>/dev/null <"/proc/self/fdinfo/$2" || return 0
    if was_emptied "$1" "$2"; then
        truncated=1
        eval "at_$1=0"
        case $1 in o) seek 3 0 ;; e) seek 4 0 ;; esac
        index_batch "$number" "$number" "z$1" 0 0
        return 0
    fi
    [ "$position" -gt "$from" ] || [ $((quiet % 32)) -eq 31 ]
}

# An offset behind what was read proves nothing: others append without moving it, and the kernel moves it only after
# the bytes can be read. Only the size shows it; it is read once per offset, and every now and then.
was_emptied() { # STREAM WRITING-FD
    [ "$position" -lt "$from" ] || return
    eval "[ $position != \"\$behind_$1\" ]" || [ $((quiet % 32)) -eq 31 ] || return
    eval "behind_$1=$position"
    size=$(size_of "/proc/self/fd/$2")
    [ "${size:-$from}" -lt "$from" ]
}

batch() { # STREAM FD
    eval "from=\$at_$1"
    convert "$1" "$2" "$from" $((number + 1)) "$BLOCK" 4
    # shellcheck disable=SC2086 # four numbers
    set -- "$1" $answer
    [ $# -eq 5 ] || exit 3 # nobody reads our stdout
    moved=$((moved + $4))
    [ "$4" -gt 0 ] || return 0
    eval "at_$1=$((from + $4)) lines_$1=\$((lines_$1 + $3)) open_$1=$5"
    index_batch $((number + 1)) $((number + $2)) "$1" "$from" $((from + $4))
    number=$((number + $2))
}

# Forwards what is there now, and no more: a process that cannot be stopped must not delay us.
drain() { # STREAM FD
    end=$(size_of "/proc/self/fd/$2")
    while eval "[ \$at_$1 -lt ${end:-0} ]"; do
        moved=0
        batch "$1" "$2"
        [ "$moved" -gt 0 ] || break
    done
    if eval "[ \$open_$1 -eq 1 ]"; then
        number=$((number + 1))
        echo "$number$1- "
        eval "open_$1=0 from=\$at_$1"
        index_batch "$number" "$number" "$1" "$from" "$from"
    fi
}

last_frame() {
    # shellcheck disable=SC2086 # four words
    set -- ${result#result }
    code=$1 signal=null error=$4
    [ "$code" -le 128 ] || [ "$code" -gt 192 ] || signal=$((code - 128))
    case $error in
    null)
        if full; then
            error='"disk_full"'
        elif [ -n "$truncated" ]; then
            error='"output_truncated"'
        fi
        ;;
    esac
    printf '%sx. {"exit_code":%s,"signal":%s,"stopped_by":%s,"grace_exceeded":%s,"error":%s,"stdout":%s,"stderr":%s}\n' \
        $((number + 1)) "$code" "$signal" "$2" "$3" "$error" \
        "$(counts 3 "$lines_o" "$at_o")" "$(counts 4 "$lines_e" "$at_e")"
}

counts() { # FD LINES BYTES
    hash=$(sha256sum 2>/dev/null <"/proc/self/fd/$1")
    hash=${hash%% *}
    printf '{"lines":%s,"bytes":%s,"sha256":%s}' "$2" "$3" "${hash:+\"}${hash:-null}${hash:+\"}"
}

size_of() {
    # shellcheck disable=SC2012 # -n prints numbers only, and the name is ours; stat is not POSIX, busybox wc reads all
    ls -lnL "$1" 2>/dev/null | {
        read -r _ _ _ _ size _
        echo "$size"
    }
}

full() {
    case $(dd if=/dev/zero of="$out/disk-probe" bs=4096 count=2 2>&1) in
    *'No space'* | *quota*) rm -f "$out/disk-probe" && return 0 ;;
    esac
    rm -f "$out/disk-probe"
    return 1
}

# At the end the supervisor removes `running` and writes two lines to fd 9: one to wake us, then the result. A read
# that times out may have consumed some bytes, so only the first line is ever read with a time limit.
ended() {
    if [ -z "$woken" ]; then
        [ ! -e "$out/running" ] || return 1
        # Perhaps the agent deleted the file: believe only the message, where waiting for it does not block us.
        [ -z "$timed_read" ] || read -r -t 0.01 _ <&9 || return 1
    fi
    result=''
    until case $result in 'result '*) ;; *) false ;; esac do
        read -r result <&9
    done
}

pause() {
    if [ "$quiet" -lt 50 ]; then length=0.04; elif [ "$quiet" -lt 100 ]; then length=0.1; else length=0.25; fi
    if [ -z "$timed_read" ]; then nap "$length"; elif read -r -t "$length" _ <&9; then woken=1; fi
}

nap() { # SECONDS
    sleep "$1" 2>/dev/null || sleep 1
}

# ---- processes ----

# Sets pids: every living descendant of ROOT and of processes that carry MARK, without the forwarder's, the watcher
# itself and our own helpers. Orphans become our children when we are pid 1; elsewhere their environment identifies them.
descendants() { # ROOT FORWARDER MARK
    marked=$([ -z "$3" ] || grep -lzF "AGENT_RUN_MARK=$3" /proc/[0-9]*/environ 2>/dev/null)
    # shellcheck disable=SC2016 # the dollars are awk's
    pids=$({
        read -r helper _ </proc/self/stat # this subshell; a snapshot may lack the processes it is about to start
        cat /proc/[0-9]*/status 2>/dev/null | awk -v helper="$helper" \
            -v root="$1" -v keep="$2" -v watcher="$watcher" -v marked="$marked" '
        function ours(pid,   steps) {
            while (pid in parent && steps++ < 10000) {
                if (pid == keep || pid == helper) return 0
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

# SIGTERM once to each, SIGKILL to what is left after the deadline.
end_processes() { # CENTISECONDS
    clock
    deadline=$((now + $1)) signalled=' '
    while descendants $$ "$forwarder" "$mark" && [ -n "$pids" ]; do
        for pid in $pids; do
            case $signalled in *" $pid "*) continue ;; esac
            signalled="$signalled$pid "
            kill -TERM "$pid" 2>/dev/null
        done
        clock
        if [ "$now" -ge $((deadline + KILL_TIMEOUT)) ]; then
            error='"unkillable"'
            return
        elif [ "$now" -ge "$deadline" ]; then
            killed=true
            # shellcheck disable=SC2086 # numbers
            kill -KILL $pids 2>/dev/null
        fi
        nap 0.05
    done
}

# ---- the supervisor ----

# What SIGTERM, SIGINT and SIGHUP do: the whole end of the run, so no signal can fall between a check and a wait.
# shellcheck disable=SC2329 # a trap calls it
stop() { # NAME NUMBER
    trap '' TERM INT HUP
    stopped="\"$1\""
    # The signal may come after a fork and before its assignment.
    if [ -n "$forwarder" ] && [ -z "$watcher" ] && [ "$!" != "$forwarder" ]; then watcher=$!; fi
    if [ -z "$forwarder" ]; then
        exit $((128 + $2))
    elif [ "$code" = null ]; then
        if [ -n "$watcher" ]; then
            end_processes $((grace * 100))
            exceeded=$killed
        fi
        collect $((128 + $2))
    fi
    finish
}

# Sets the command's exit code: what the watcher reports, or OTHERWISE when it reports none or was killed.
collect() { # OTHERWISE
    clock
    deadline=$((now + KILL_TIMEOUT))
    while [ -n "$watcher" ] && running "$watcher" && [ "$now" -lt "$deadline" ]; do
        nap 0.02
        clock
    done
    echo "$1" >&8
    read -r code <&8
}

finish() {
    tries=0
    while
        rm -f "$out/running"
        printf 'wake\nresult %s %s %s %s\n' "$code" "$stopped" "$exceeded" "$error" >&9
        await_forwarder
        [ "$status" -ne 0 ] && [ "$status" -ne 3 ] && [ "$tries" -lt 3 ] && [ "$stopped" = null ]
    do
        tries=$((tries + 1))
        forward &
        forwarder=$!
    done
    [ "$stopped" != null ] || await_acknowledgement
    exit "$code"
}

# Kubelets rotate a log from 10 MiB on and serve only its newest file.
await_acknowledgement() {
    size=$(size_of /proc/self/fd/3) more=$(size_of /proc/self/fd/4)
    [ $((${size:-0} + ${more:-0})) -ge "$acknowledge_above" ] || return
    clock
    deadline=$((now + acknowledge_timeout * 100))
    while [ ! -e "$out/acknowledged" ] && [ "$now" -lt "$deadline" ]; do
        nap 0.1
        clock
    done
}

await_forwarder() {
    if [ "$stopped" = null ]; then
        wait "$forwarder"
        status=$?
        return
    fi
    status=0
    clock
    deadline=$((now + DRAIN_TIMEOUT))
    while running "$forwarder"; do
        clock
        if [ "$now" -ge "$deadline" ]; then
            descendants "$forwarder" '' ''
            # shellcheck disable=SC2086 # numbers
            kill -KILL "$forwarder" $pids 2>/dev/null
            break
        fi
        nap 0.02
    done
}

# The run cannot start: two frames report why.
fail_start() { # ERROR DETAIL: fixed words and names of variables only
    echo '1h. {"format":1}'
    printf '2x. {"exit_code":125,"signal":null,"error":"%s","detail":"%s"}\n' "$1" "$2"
    exit 125
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

prepare_folders() {
    mkdir -p "$out" || fail_start out --out
    for name in stdout stderr index runner-stderr running; do
        true >"$out/$name" || fail_start out --out
    done
    echo $$ >"$out/running"
    { rm -f "$out/acknowledged" "$out/code" "$out/result" && mkfifo "$out/code" "$out/result"; } || fail_start out --out
    # shellcheck disable=SC2094 # we read what the command appends
    exec 3<"$out/stdout" 4<"$out/stderr" 6>>"$out/stdout" 7>>"$out/stderr" 8<>"$out/code" 9<>"$out/result"
    rm -f "$out/code" "$out/result" # no other process may write to them
    [ -r "$stdin" ] || fail_start stdin --stdin
    [ -z "$HOME" ] || mkdir -p "$HOME" || :
    for name in XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_CACHE_HOME TMPDIR; do
        eval "folder=\${$name:-}"
        [ -z "$folder" ] || mkdir -p "$folder" || fail_start folder "$name"
    done
    case ${OPENCODE_DB:-} in */*) mkdir -p "${OPENCODE_DB%/*}/" || fail_start folder OPENCODE_DB ;; esac
    { mkdir -p "$dir" && cd "$dir"; } || fail_start workdir --dir
    export PWD
} 2>/dev/null

# fd 5 stays open in this process alone: the forwarder puts its stdout there, the watcher closes it.
await_api() {
    tries=0
    until { read -r address <"$api/url"; } 2>/dev/null && [ -p "$api/agent" ]; do
        tries=$((tries + 1))
        [ "$tries" -le $((api_timeout * 10)) ] || fail_start api --api
        nap 0.1
    done
    PAPERCLIP_API_URL=$address
    export PAPERCLIP_API_URL
    for name in $api_variables; do
        eval "$name=\$address\${$name:-}"
        export "${name?}"
    done
    exec 5<>"$api/agent"
}

# The watcher: waits for the command, ignores signals, and writes its exit code to fd 8. A signal that cuts a wait of
# bash short can lose the exit code of the process it waited for, and the next wait for it never ends.
watch() {
    trap '' TERM INT HUP
    exec 5>&-
    (
        AGENT_RUN_MARK=$mark
        export AGENT_RUN_MARK
        # A shell makes background commands ignore SIGINT, and their tools inherit that; undo it where possible.
        trap - TERM INT HUP QUIT
        [ -z "$default_signals" ] || exec env --default-signal=INT,QUIT "$@"
        exec "$@"
    ) <"$stdin" >&6 2>&7 3<&- 4<&- 6>&- 7>&- 8>&- 9>&-
    echo $? >&8
}

run() {
    forwarder='' watcher='' found='' code=null stopped=null exceeded=false killed=false error=null timed_read='' default_signals=''
    trap 'stop TERM 15' TERM
    trap 'stop INT 2' INT
    trap 'stop HUP 1' HUP
    prepare_folders
    [ -z "$api" ] || await_api
    exec 2>"$out/runner-stderr" # errors of the shell; our own stderr may be merged with our frames
    read -r mark </proc/sys/kernel/random/uuid
    (read -r -t 0.01 _ <&9) 2>/dev/null
    case $? in 1 | 129 | 1[3-9]?) timed_read=1 ;; esac
    forward &
    forwarder=$!
    if command -v "$1" >/dev/null 2>&1; then found=1; fi
    if [ -n "$found" ] && env --default-signal=INT,QUIT true 2>/dev/null; then default_signals=1; fi
    watch "$@" &
    watcher=$!
    wait "$watcher"
    collect 137
    case $code$found in
    127) error='"command_not_found"' ;;
    126*) error='"command_not_executable"' ;;
    esac
    end_processes "$LEFTOVER_GRACE"
    finish
}

replay() { # FIRST LAST
    LC_ALL=C
    export LC_ALL
    exec 3<"$out/stdout" 4<"$out/stderr"
    emptied_o=0 emptied_e=0 # the last frame whose bytes were emptied out of the file
    while read -r _ last stream _; do
        case $stream in z?) eval "emptied_${stream#z}=$last" ;; esac
    done <"$out/index"
    while read -r first last stream from to _; do
        [ "$last" -ge "$1" ] && [ "$first" -le "$2" ] || continue
        case $stream in h) echo '1h. {"format":1}' && continue ;; o) fd=3 emptied=$emptied_o ;; e) fd=4 emptied=$emptied_e ;; z?) continue ;; esac
        [ "$first" -gt "$emptied" ] || continue
        if [ "$from" -eq "$to" ]; then
            echo "$first$stream- "
        else
            seek "$fd" "$from"
            { convert "$stream" "$fd" "$from" "$first" $((to - from)) 1; } 5>&1
        fi
    done <"$out/index" | awk -v first="$1" -v last="$2" '$0 + 0 >= first + 0 && $0 + 0 <= last + 0'
}

processes() {
    read -r root <"$out/running" || return
    watcher=''
    descendants "$root" '' ''
    for pid in $pids; do
        if read -r name <"/proc/$pid/comm"; then echo "$name"; fi
    done
} 2>/dev/null

busybox=${RUNNER_BUSYBOX:-/agent-run/bin/busybox}
[ ! -x "$busybox" ] || use_busybox_for awk cat dd env grep ls mkdir mkfifo rm sha256sum sleep tr
stdin=/dev/null out='' dir='' grace=10 acknowledge_timeout=60 acknowledge_above=4194304 api='' api_variables='' api_timeout=60
while [ $# -gt 0 ]; do
    case $1 in
    --stdin) stdin=$(absolute "$2") && shift 2 ;;
    --out) out=$(absolute "$2") && shift 2 ;;
    --dir) dir=$(absolute "$2") && shift 2 ;;
    --grace) grace=$2 && shift 2 ;;
    --acknowledge-timeout) acknowledge_timeout=$2 && shift 2 ;;
    --acknowledge-above) acknowledge_above=$2 && shift 2 ;;
    --api) api=$(absolute "$2") && shift 2 ;;
    --api-timeout) api_timeout=$2 && shift 2 ;;
    --api-variable) api_variables="$api_variables $2" && shift 2 ;;
    --replay)
        replay "$2" "$3"
        exit
        ;;
    --processes)
        processes
        exit
        ;;
    --acknowledge)
        true >"$out/acknowledged"
        exit
        ;;
    --) shift && break ;;
    *) usage "unknown argument: $1" ;;
    esac
done
[ -n "$out" ] && [ -n "$dir" ] && [ $# -gt 0 ] || usage 'needs --out, --dir and a command after --'
for word in "$grace" "$acknowledge_timeout" "$acknowledge_above" "$api_timeout"; do
    case $word in *[!0-9]* | '') usage '--grace, --acknowledge-timeout, --acknowledge-above and --api-timeout need whole numbers' ;; esac
done
for word in $api_variables; do
    case $word in [!A-Za-z_]* | *[!A-Za-z0-9_]*) usage '--api-variable needs the name of a variable' ;; esac
done
run "$@"
