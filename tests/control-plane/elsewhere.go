//go:build elsewhere

// What other folders build inside this module, so that Kubernetes is pinned and replaced in one place: see tests/cluster.
// No build sets the tag; `go mod tidy` minds every tag, and so keeps in go.mod what these packages require.
package main

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
	_ "k8s.io/kubernetes/test/images/regression-issue-74839"
)
