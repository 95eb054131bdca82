#!/bin/sh
# Runs OpenCode's server until the sidecar, which drives it, sends an order. The runner starts this instead of the
# agent's command, whose arguments are not used.
#
#   sh serve.sh OUT PROGRAM ARGS...
#
# OUT is the folder shared with the sidecar. The server's standard output goes to OUT/server, where the sidecar finds its
# address; `ended` in it says that there is no server any more. Orders come through the FIFO OUT/orders:
#   end CODE    the server ends, and this exits with CODE, or with the server's own code if it had ended by itself
#   rest WORD KIB
#               all that the turn has left running ends, whatever its environment and its session; the server stays, for
#               the agent's next run, unless it then uses more memory than that: such a pod ends as by `end 0`. WORD in
#               OUT/idle says that it is done
# The second word of OUT/ready is the server's password. Tools of the server see it; a command line never has it. If the
# third is `rests`, the server may rest; then its shells take the variables of the run that it works for from
# OUT/environment, because its own are those of the first run.

. "${0%/*}/processes.sh"
. "${0%/*}/prepare.sh"
out=$1
shift
exec 5<>"$out/orders" 6>&2 2>/dev/null # the shell's own words about a child that was killed are no output

# Waits for the order to end, then ends the server.
await_order() {
    read -r order_reader _ </proc/self/stat
    while read -r word value limit <&5 && [ "$word" = rest ]; do
        error=''
        # shellcheck disable=SC2154 # runner.sh sets it: only its processes are ours
        end_processes "$LEFTOVER_GRACE" "$AGENT_RUN_RUNNER" "$AGENT_RUN_MARK" "$PPID $$ $order_reader $server"
        if [ -n "$error" ] || ! set_home_configuration_aside 2>&6 || exceeds "$limit"; then word=end value=0 && break; fi
        rm -f "$out/idle"
        echo "$value" >"$out/idle"
    done
    echo "$word $value" >"$out/order"
    # Its turn is over and all of its events are read. OpenCode 1.18.33 stayed after a SIGTERM that came while it installed
    # packages in the background.
    end_program "$server"
}

exceeds() { # KIB: whether the server has more in memory
    while read -r name resident _; do
        [ "$name" != VmRSS: ] || [ "$resident" -le "$1" ] || return 0
    done <"/proc/$server/status"
    return 1
}

# A shell for the server's tools that begins with the variables of the run.
make_shell() {
    real=$(command -v "${SHELL:-bash}" || command -v bash || command -v sh)
    mkdir -p "$out/shell"
    {
        echo '#!/bin/sh'
        echo "[ ! -r '$out/environment' ] || . '$out/environment'"
        echo "exec '$real' \"\$@\""
    } >"$out/shell/${real##*/}"
    chmod 700 "$out/shell/${real##*/}"
    SHELL=$out/shell/${real##*/}
    export SHELL
}

serve() { # PROGRAM
    read -r _ OPENCODE_SERVER_PASSWORD rests <"$out/ready"
    export OPENCODE_SERVER_PASSWORD
    [ "$rests" != rests ] || make_shell
    become "$1" serve --hostname 127.0.0.1 --port 0 --print-logs # the log's level is INFO in OpenCode 1 and 2
}

(serve "$1") </dev/null >"$out/server" 2>&6 5>&- 6>&- &
server=$!
await_order &
waiting=$!
wait "$server"
code=$?
if [ -e "$out/order" ]; then own=''; else own=$code; fi
echo "ended" >>"$out/server"
wait "$waiting"
read -r word value <"$out/order" || exit "$code"
[ "$word" = end ] || exit "$code"
exit "${own:-$value}"
