# Sourced by the scripts, two folders below the top, that build what takes minutes. It says what they have in common: what is
# built is kept by a hash of what it is made from, and built by one at a time.
#
#   name            set before this file is read: what messages begin with
#   SIGNPOST_CACHE  where builds are kept (default: signpost in ${XDG_CACHE_HOME:-~/.cache}, for all checkouts)

say() { echo "$name: $*" >&2; }
fail() { say "$@"; exit 1; }

require_go() {
    command -v go >/dev/null || fail "install Go 1.21 or newer (https://go.dev/dl; it fetches the version in go.mod by itself)"
}

# build_once SHELF FILE...: goes to the folder of the script, where the files are. If what they make is on that shelf of the cache,
# prints where and ends the script; if not, returns with $partial, an empty folder to build it in.
#
#   product  if set: the one file that is printed instead of the folder
build_once() {
    # A cache given relative to where we were called from must be found from everywhere.
    mkdir -p "${SIGNPOST_CACHE:=${XDG_CACHE_HOME:-$HOME/.cache}/signpost}"
    SIGNPOST_CACHE=$(cd "$SIGNPOST_CACHE" && pwd)
    cd "$(dirname "$0")"

    shelf=$SIGNPOST_CACHE/$1
    shift
    built=$shelf/$(cat "$@" | sha256sum | cut -c 1-16)
    print_if_built

    # Two who start at once: the second waits here and finds what the first has built.
    mkdir -p "$shelf"
    exec 9>"$shelf/lock"
    flock --nonblock 9 || { say "waiting for another build"; flock 9; }
    print_if_built

    partial=$shelf/partial
    heartbeat=
    trap 'rm -rf "$partial"; [ -z "$heartbeat" ] || kill "$heartbeat" 2>/dev/null || true' EXIT
    trap 'exit 1' HUP INT TERM
    # One that was killed may have left it.
    rm -rf "$partial"
    mkdir "$partial"
    started=$(date +%s)
    # Short naps: a longer one would go on after the build, and keep the reader of the output waiting for its end. It ends by itself
    # after a build that was killed.
    (
        while sleep 1 && kill -0 $$ 2>/dev/null; do
            seconds=$(($(date +%s) - started))
            [ $((seconds % 30)) -ne 0 ] || say "still building after $seconds s"
        done
    ) >/dev/null 9>&- &
    heartbeat=$!
}

print_if_built() {
    [ -d "$built" ] || return 0
    echo "$built${product:+/$product}"
    exit
}

# The end of a build: what is under its final name is complete.
keep() {
    mv -T "$partial" "$built"
    say "built in $(($(date +%s) - started)) s"
    print_if_built
}
