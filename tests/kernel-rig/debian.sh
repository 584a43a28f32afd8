# shellcheck shell=sh disable=SC2154
# Gets packages of Debian's kernels. Sourced by `fetch` and `build-user-mode`, which set `series`, the `cache` where a package
# is kept, and `partial`, a folder for what is under way.

say() { echo "kernel-rig: $*" >&2; }
missing() { say "$@"; exit 77; }

# Prints the release of Debian that has the series.
release_of() {
    case $1 in
    5.10) echo bullseye ;;
    6.1) echo bookworm ;;
    6.12) echo trixie ;;
    esac
}

# The machine's own sources, by the name of the other release.
sources() {
    for file in /usr/share/keyrings/debian-archive-keyring.gpg /usr/share/keyrings/debian-archive-keyring.pgp; do
        [ ! -f "$file" ] || signed=" signed-by=$file"
    done
    apt-get -o Dir::State="$partial/apt" -o Dir::Cache="$partial/apt" update --print-uris |
        sed -n "s|^'\(.*\)/dists/$own\([-a-z]*\)/InRelease' .*|deb [target=Packages${signed:-}] \1 $release\2 main|p" | sort -u
}

# A program of apt, which knows this machine's release already. What it learns of another one goes to the cache; the machine's
# own sources and lists are only read.
ask() {
    program=$1
    shift
    if [ "$release" != "$own" ]; then
        set -- -o Dir::State="$partial/apt" -o Dir::Cache="$partial/apt" -o Dir::Etc::SourceParts=/dev/null \
            -o Dir::Etc::SourceList="$partial/sources.list" -o Acquire::Check-Valid-Until=false \
            -o Acquire::Retries=2 -o Acquire::http::Timeout=30 "$@"
    fi
    "$program" -qq -o APT::Sandbox::User=root "$@"
}

newest() { ask apt-cache search --names-only "$1" 2>/dev/null | sort -V | tail -n 1 | cut -d ' ' -f 1; }

# Sets `package` to the file in the cache that is Debian's newest package whose name matches the first argument, an extended
# regular expression without anchors. What is there already stays until the cache is removed: a run is compared with the one
# before. The second argument says how much there is to fetch.
get_package() {
    package=$(find "$cache" -maxdepth 1 -name '*.deb' | sort -V | tail -n 1)
    [ -z "$package" ] || return 0
    command -v apt-get >/dev/null || missing "no apt-get to fetch a Debian kernel with"
    release=$(release_of "$series")
    own=$([ ! -f /etc/os-release ] || (. /etc/os-release && echo "${VERSION_CODENAME:-}"))
    mkdir -p "$partial/apt/lists/partial" "$partial/apt/archives/partial"
    sources >"$partial/sources.list"
    name=$(newest "^$1\$")
    if [ -z "$name" ]; then
        ask apt-get update >&2 || say "apt-get update failed for $release"
        name=$(newest "^$1\$")
    fi
    [ -n "$name" ] || missing "the sources of this machine offer no $series kernel of Debian's $release"
    say "fetching $name ($2)"
    (cd "$partial" && ask apt-get download "$name" >&2) || missing "$name cannot be fetched"
    package=$(basename "$partial/${name}"_*.deb)
    mv "$partial/$package" "$cache/$package"
    package=$cache/$package
    rm -r "$partial/apt" "$partial/sources.list"
}
