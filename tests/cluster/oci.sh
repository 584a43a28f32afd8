# Sourced: writes archives of images, as `ctr images import` reads them: OCI image layouts in a tar
# (github.com/opencontainers/image-spec, image-layout.md). The same files make the same bytes.

# layer_of FOLDER: the files of a folder as a layer, owned by root; prints the archive.
layer_of() {
    tar --create --file "$1.layer" --directory "$1" --sort=name --mtime=@0 --mode=u=rwX,go=rX --owner=0 --group=0 --numeric-owner .
    echo "$1.layer"
}

# add_image LAYOUT NAME RUNS LAYER...: puts one more image into a layout, a folder. RUNS says what a container of it runs, as members
# of the configuration's JSON. Layers of several images that are the same are there once.
add_image() (
    layout=$1
    image=$2
    runs=$3
    shift 3
    mkdir -p "$layout/blobs/sha256"

    diffs=
    layers=
    for layer in "$@"; do
        described=$(add_blob "$layout" "$layer" application/vnd.oci.image.layer.v1.tar)
        layers=$layers${layers:+,}{$described}
        diffs=$diffs${diffs:+,}\"sha256:$(digest_of "$layer")\"
    done

    cat >"$layout/config" <<JSON
{"architecture":"$(go env GOARCH)","os":"linux","config":{
$runs,"Env":["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
"rootfs":{"type":"layers","diff_ids":[$diffs]}}
JSON
    config=$(add_blob "$layout" "$layout/config" application/vnd.oci.image.config.v1+json)
    cat >"$layout/manifest" <<JSON
{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
"config":{$config},"layers":[$layers]}
JSON
    manifest=$(add_blob "$layout" "$layout/manifest" application/vnd.oci.image.manifest.v1+json)
    rm "$layout/config" "$layout/manifest"
    # The annotation is where containerd looks for the whole name; the specification's own has room for a tag only.
    echo "{$manifest,\"annotations\":{\"io.containerd.image.name\":\"$image\"}}" >>"$layout/manifests"
)

# archive LAYOUT FILE: writes the layout to a tar file and removes it.
archive() {
    echo '{"imageLayoutVersion":"1.0.0"}' >"$1/oci-layout"
    echo "{\"schemaVersion\":2,\"manifests\":[$(paste -s -d , "$1/manifests")]}" >"$1/index.json"
    rm "$1/manifests"
    # These two first: a reader that streams knows then what the blobs are.
    tar --create --file "$2" --directory "$1" --sort=name --mtime=@0 --mode=u=rwX,go=rX --owner=0 --group=0 --numeric-owner oci-layout index.json blobs
    rm -r "$1"
}

# Prints what a descriptor of the file says.
add_blob() {
    ln -f "$2" "$1/blobs/sha256/$(digest_of "$2")"
    echo "\"mediaType\":\"$3\",\"digest\":\"sha256:$(digest_of "$2")\",\"size\":$(stat -c %s "$2")"
}

digest_of() {
    sha256sum "$1" | cut -d ' ' -f 1
}
