#!/bin/sh
# Runs an agent that speaks the Agent Client Protocol until the sidecar, which drives it, sends an order. The runner
# starts this instead of the agent's command.
#
#   sh acp.sh OUT PROGRAM ARGS...
#
# OUT is the folder shared with the sidecar, which has made there: the FIFO OUT/input, the program's standard input; the
# file OUT/protocol, its standard output; and the FIFO OUT/orders, through which orders come:
#   copy SESSION GLOB
#               the end of the newest file that GLOB, below $HOME, names and whose path has SESSION becomes OUT/usage
#   end CODE    the program ends, and this exits with CODE; if CODE is 1, with the program's own code of failure if it had
#               ended by itself
#   rest WORD SECONDS
#               the program ends, and this exits with 0 and leaves OUT/rests behind: the runner ends what is left of the
#               run, and starts this anew. WORD in OUT/idle says that it has, and waits for `run`, with no program; after
#               so many seconds, because the sidecar may be dead, or at `end CODE`, it exits
#   run         the program starts, for another run, with the variables of OUT/environment
# OUT/ended has the program's exit code once it has ended by itself. This holds the FIFO open, so the program sees no end
# of its input before the order, whether the sidecar lives or not.
#
# The folder $AGENT_RUN_SECRET (/agent-run/secret) may have the file agent-files: lines of `KEY TARGET`, parted by a tab.
# The file KEY beside it is copied to TARGET first, which may begin with `$NAME/` for the value of a variable. Then comes the
# step that $AGENT_RUN_PREPARE names. The file agent-skills has the folder below $HOME in which the agent looks for skills, then
# lines of `NAME PATH`, parted by a tab: each becomes a link there.
#
# Needs, besides what processes.sh needs, mv, readlink and tail.

. "${0%/*}/processes.sh"
out=$1
shift
secret=${AGENT_RUN_SECRET:-/agent-run/secret}
copied=8388608 # bytes of a file that are copied at most
tab=$(printf '\t')
exec 5<>"$out/orders" 6>&2 2>/dev/null # the shell's own words about a child that was killed are no output

copy_files() {
    while IFS=$tab read -r key target; do
        case $target in
        '$'*/*)
            name=${target%%/*} && name=${name#?}
            case $name in '' | [!A-Za-z_]* | *[!A-Za-z0-9_]*) continue ;; esac
            eval "target=\${$name:-}/\${target#*/}"
            ;;
        esac
        case $key in '' | */*) continue ;; esac
        mkdir -p "${target%/*}" && cat "$secret/$key" >"$target" && chmod 600 "$target" ||
            echo "acp.sh: $key cannot be copied to $target" >&6
    done <"$secret/agent-files"
}

# The home stays, so the links of earlier runs go. Whatever else is in the folder is the agent's own and stays.
link_skills() {
    {
        IFS= read -r folder && folder=$HOME/$folder && mkdir -p "$folder" || return 0
        for link in "$folder"/*; do
            case $([ ! -L "$link" ] || readlink "$link") in /paperclip/* | /agent-run/skills/*) rm -f "$link" ;; esac
        done
        while IFS=$tab read -r name path; do
            if [ -e "$folder/$name" ] || [ -L "$folder/$name" ]; then
                echo "acp.sh: $folder/$name is the agent's own, so this skill of Paperclip's is not linked there" >&6
            else
                ln -s "$path" "$folder/$name" || echo "acp.sh: $folder/$name cannot be linked" >&6
            fi
        done
    } <"$secret/agent-skills"
}

# Gemini 0.61 names a session's file after the minute and the first characters of its id, so a session that is loaded is
# overwritten within the minute, and later a stub of the same id makes its clean-up delete both. One file for each session
# is kept, the largest, under a name that no start chooses.
# shellcheck disable=SC2329 # called by its name
gemini_sessions() {
    for folder in "${GEMINI_CLI_HOME:-$HOME}"/.gemini/tmp/*/chats; do
        for file in "$folder"/session-*.jsonl; do
            short=${file##*-} && kept="$folder/session-2000-01-01T00-00-$short"
            [ -e "$file" ] && [ "$file" != "$kept" ] || continue
            if [ ! -e "$kept" ] || [ "$(wc -c <"$file")" -gt "$(wc -c <"$kept")" ]; then
                mv -f "$file" "$kept"
            else
                rm -f "$file"
            fi
        done
    done
}

copy_newest() { # SESSION GLOB
    newest=''
    IFS='' # the glob is one word
    # shellcheck disable=SC2086 # it is to be expanded
    for file in "$HOME"/$2; do
        case $file in *"$1"*) ;; *) continue ;; esac
        if [ -f "$file" ] && { [ -z "$newest" ] || [ "$file" -nt "$newest" ]; }; then newest=$file; fi
    done
    unset IFS
    { [ -z "$newest" ] || tail -c "$copied" "$newest"; } >"$out/usage.new"
    mv -f "$out/usage.new" "$out/usage"
}

await_run() {
    read -r word seconds <"$out/rests"
    rm -f "$out/idle"
    echo "$word" >"$out/idle"
    end_later "$seconds" &
    timer=$!
    while read -r word value <&5; do
        case $word in run | end) break ;; esac
    done
    kill "$timer"
    rm -f "$out/rests" "$out/order" "$out/ended" "$out/usage" "$out/program.pid"
    [ "$word" = run ] || exit "$value"
    # shellcheck source=/dev/null
    . "$out/environment"
    cd "$PWD" || exit # it may have been replaced meanwhile
}

end_later() { # SECONDS
    sleep "$1" &
    # shellcheck disable=SC2064 # the process of now
    trap "kill $!; exit" TERM
    wait "$!" && echo 'end 0' >&5
}

follow_orders() {
    while read -r word value rest <&5; do
        case $word in
        copy) copy_newest "$value" "$rest" ;;
        rest) echo "$value $rest" >"$out/rests" && value=0 && break ;;
        end) rm -f "$out/rests" && break ;;
        esac
    done
    echo "$value" >"$out/order"
    await_pid "$out/program.pid" || return
    exec 7>&- # the end of the program's input, which it has open by now
    end_program "$pid" # its turn is over; what it has started, the runner ends
}

run() {
    read -r pid _ </proc/self/stat
    echo "$pid" >"$out/program.pid"
    become "$@"
}

[ ! -e "$out/rests" ] || await_run
exec 7<>"$out/input"
[ ! -r "$secret/agent-files" ] || copy_files
[ ! -r "$secret/agent-skills" ] || link_skills
case ${AGENT_RUN_PREPARE:-} in gemini_sessions) "$AGENT_RUN_PREPARE" ;; esac
follow_orders &
following=$!
exec 7>&-
(run "$@") <"$out/input" >>"$out/protocol" 2>&6 5>&- 6>&-
code=$?
if [ ! -e "$out/order" ]; then
    echo "$code" >"$out/ended.new" && mv -f "$out/ended.new" "$out/ended"
fi
wait "$following"
read -r value <"$out/order" || exit "$code"
[ "$value" != 1 ] || [ ! -e "$out/ended" ] || [ "$code" -eq 0 ] || exit "$code"
exit "$value"
