# The images of agent and operator, for those who build with Docker:
#
#   docker build --target agent --tag signpost-agent .
#   docker build --target operator --tag signpost-operator .
#
# The same files, built by the same script, as in the archives of `make image`, which needs no Docker; a test holds the two together.

ARG VERSION=0.1.0
# The commit, and the time of it as RFC 3339 wants it: the build sees no repository.
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z

FROM rust:1.95.0-bookworm AS programs
# rust-toolchain.toml names lints and formatting too, which are not needed here and would be fetched.
ENV RUSTUP_TOOLCHAIN=1.95.0
WORKDIR /signpost
COPY . .
RUN images/programs /programs

FROM scratch AS image
ARG VERSION
ARG REVISION
ARG CREATED
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
LABEL org.opencontainers.image.version="$VERSION"
LABEL org.opencontainers.image.revision="$REVISION"
LABEL org.opencontainers.image.created="$CREATED"
LABEL org.opencontainers.image.source="https://github.com/signpost/signpost"
LABEL org.opencontainers.image.licenses="Apache-2.0"

# One arena for all threads, which rarely allocate at once: what one has freed another can use. And a fixed threshold: by default
# it grows with the pages of the first lists, and what they took may then never be given back (mallopt(3)).
ENV MALLOC_ARENA_MAX=1
ENV MALLOC_MMAP_THRESHOLD_=131072

FROM image AS agent
LABEL org.opencontainers.image.title="Signpost agent"
LABEL org.opencontainers.image.description="Programs a node's kernel to forward connections to Kubernetes Services"
COPY --from=programs /programs/signpost-agent /usr/local/bin/signpost-agent
# Root, because capabilities that are added to another user's container are not effective in it.
USER 0:0
ENTRYPOINT ["/usr/local/bin/signpost-agent"]

FROM image AS operator
LABEL org.opencontainers.image.title="Signpost operator"
LABEL org.opencontainers.image.description="Gives every node its configuration and sums up what the nodes report"
COPY --from=programs /programs/signpost-operator /usr/local/bin/signpost-operator
USER 65532:65532
ENTRYPOINT ["/usr/local/bin/signpost-operator"]
