# Sourced: the Kubernetes that go.mod pins, and how to link its programs so that they tell clients so; without, all say v0.0.0.
# Read with the working directory where go.mod is.

kubernetes=$(sed -n 's,^[[:space:]]*k8s.io/kubernetes v,,p' go.mod)
stamp=k8s.io/component-base/version
minor=${kubernetes#*.}
ldflags="-s -w -X $stamp.gitVersion=v$kubernetes -X $stamp.gitMajor=${kubernetes%%.*} -X $stamp.gitMinor=${minor%%.*}"
