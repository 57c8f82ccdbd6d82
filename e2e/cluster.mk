# The embedded Kubernetes: built from Go modules and Debian packages, run without Docker. Included by the Makefile.
# PLIMSOLL_E2E_KUBECONFIG names another cluster to use; the ambient KUBECONFIG is never read.

CLUSTER := $(BIN)/python e2e/cluster/cluster.py
RUNTIME_IMAGE := localhost/plimsoll/runtime:dev
OPERATOR_IMAGE := localhost/plimsoll/operator:dev
# Folders of wheels beside the checkout are seen by the builds, as they are by `make venv`; they are not in the images.
WHEEL_FOLDERS := $(sort $(wildcard $(PIP_FIND_LINKS)))
IMAGE_WHEELS := $(foreach folder,$(WHEEL_FOLDERS),--volume $(folder):$(folder):ro) \
	$(if $(WHEEL_FOLDERS),--build-arg 'PIP_FIND_LINKS=$(WHEEL_FOLDERS)')

.PHONY: cluster-packages cluster-binaries cluster cluster-down cluster-status images cluster-images cluster-smoke cluster-demo e2e

cluster-packages: $(INSTALLED) ## Install the Debian packages that the embedded cluster needs (root)
	$(CLUSTER) packages

cluster-binaries: $(INSTALLED) ## Build Kubernetes, etcd, CoreDNS and Helm from their Go modules (20 minutes, once)
	$(CLUSTER) binaries

cluster: $(if $(PLIMSOLL_E2E_KUBECONFIG),$(INSTALLED),cluster-binaries) ## Start a real Kubernetes on this machine and print its kubeconfig (root)
	$(CLUSTER) up

cluster-down: $(INSTALLED) ## Stop the embedded cluster, and leave nothing mounted or running
	$(CLUSTER) down

cluster-status: $(INSTALLED) ## Say which servers of the embedded cluster run
	$(CLUSTER) status

images: $(INSTALLED) ## Build the runtime's and the operator's images (root)
	$(CLUSTER) build-image runtime/Containerfile $(RUNTIME_IMAGE) --context . --build-arg DEMO_MODEL=1 $(IMAGE_WHEELS)
	$(CLUSTER) build-image operator/Containerfile $(OPERATOR_IMAGE) --context .

cluster-images: images ## Build the images and hand them to the running cluster
	$(CLUSTER) load-image $(RUNTIME_IMAGE)
	$(CLUSTER) load-image $(OPERATOR_IMAGE)

cluster-smoke: cluster ## Check the running cluster: image, Deployment, Service, DNS, logs, events, Helm
	$(BIN)/python e2e/cluster/smoke/smoke.py

# Images are built where there are none: `make cluster-images` after a change.
cluster-demo: cluster ## Install the chart, apply the sample, ask each route from a pod inside the cluster
	@for image in runtime operator; do $(CLUSTER) has-image localhost/plimsoll/$$image:dev || exec $(MAKE) cluster-images; done
	PYTHONPATH=e2e/cluster $(BIN)/python e2e/demo.py

# The tests start a cluster where none runs, and stop what they started. E2E narrows: make e2e E2E=e2e/test_hub.py
E2E ?= e2e
E2E_REPORT := .artifacts/e2e.xml

e2e: $(if $(PLIMSOLL_E2E_KUBECONFIG),$(INSTALLED),cluster-binaries images) ## Apply manifests to a cluster with the chart installed, and ask what comes (root)
	@mkdir -p $(dir $(E2E_REPORT))
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest $(E2E) -v -n0 --durations=15 --junitxml=$(E2E_REPORT)

.PHONY: bench-ready bench-operator
bench-ready: cluster-binaries images ## Measure a server from kubectl apply to Ready, as a table (root)
	PYTHONPATH=e2e/cluster $(BIN)/python e2e/measure_ready.py

bench-operator: cluster-binaries ## Measure the operator at 500 servers without nodes, as a table and as JSON in .artifacts/
	PYTHONPATH=e2e/cluster $(BIN)/python benchmarks/operator_run.py $(if $(SERVERS),--servers $(SERVERS))
