# shellcheck shell=sh
# What a command finds when it starts: Paperclip's address, its folders, its logins. Sourced by runner.sh, whose
# fail_start ends a run that cannot start.

# The address of the pod's API proxy becomes PAPERCLIP_API_URL and the beginning of each variable NAME.
set_address() { # ADDRESS NAME...
    PAPERCLIP_API_URL=$1
    export PAPERCLIP_API_URL
    shift
    for name; do
        eval "$name=\$PAPERCLIP_API_URL\${$name:-}"
        export "${name?}"
    done
}

make_folders() {
    [ -z "$HOME" ] || mkdir -p "$HOME" || :
    for name in XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME XDG_CACHE_HOME TMPDIR; do
        eval "folder=\${$name:-}"
        [ -z "$folder" ] || mkdir -p "$folder" || fail_start folder "$name"
    done
    [ -z "${XDG_CONFIG_HOME:-}" ] || skip_installation "$XDG_CONFIG_HOME/opencode"
    case ${OPENCODE_DB:-} in */*) mkdir -p "${OPENCODE_DB%/*}/" || fail_start folder OPENCODE_DB ;; esac
}

# OpenCode prefers what is in `~/.opencode` to the run's configuration, whatever its switches say, so an agent could permit
# itself there what its operator denies. Unless the run wants a workspace's configuration, it is not used; programs stay.
set_home_configuration_aside() {
    [ -n "${OPENCODE_DISABLE_PROJECT_CONFIG:-}" ] && [ -n "${HOME:-}" ] || return 0
    configured=$HOME/.opencode aside=$HOME/.opencode-unused
    [ -L "$configured" ] || has_more_than_programs "$configured" || return 0
    { chmod u+w "$HOME" "$configured" && { [ -L "$aside" ] || chmod -R u+rwX "$aside"; }; } 2>/dev/null || :
    { rm -rf "$aside" && mv "$configured" "$aside"; } 2>/dev/null || return 1
    echo "runner.sh: ~/.opencode is not used, it is in ~/.opencode-unused" >&2
    if [ ! -L "$aside" ] && [ ! -L "$aside/bin" ] && [ -d "$aside/bin" ]; then
        { mkdir "$configured" && mv "$aside/bin" "$configured/bin"; } 2>/dev/null
    fi
}

has_more_than_programs() { # FOLDER
    for entry in "$1"/* "$1"/.[!.]* "$1"/..?*; do
        case ${entry##*/} in bin) [ ! -L "$entry" ] && continue ;; esac
        if [ -e "$entry" ] || [ -L "$entry" ]; then return 0; fi
    done
    return 1
}

# OpenCode installs a package for the tools of its users into its own configuration folder while it works: three seconds
# of CPU for each pod. Nothing of a user is in that folder of a pod, so it is marked as installed.
skip_installation() { # FOLDER
    mkdir -p "$1/node_modules" || return 0
    [ -e "$1/package-lock.json" ] ||
        echo '{"packages": {"": {"dependencies": {"@opencode-ai/plugin": "*"}}}}' >"$1/package-lock.json"
}

# OpenCode has its logins below XDG_DATA_HOME, which ends with the pod. Links there lead to the first FOLDER that has
# them, else to the first of all, where new ones are kept.
link_logins() { # FOLDER...
    [ -n "${XDG_DATA_HOME:-}" ] && [ $# -gt 0 ] || return 0
    for file in auth.json mcp-auth.json; do
        kept=$1
        for folder; do
            if [ -r "$folder/$file" ]; then kept=$folder && break; fi
        done
        mkdir -p "$kept" "$XDG_DATA_HOME/opencode" && ln -s "$kept/$file" "$XDG_DATA_HOME/opencode/$file"
    done 2>/dev/null
}
