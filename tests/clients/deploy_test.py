"""packaging/: the Kubernetes manifest fits the schemas of Kubernetes and asks the server what it can answer; the
Grafana board's expressions are PromQL, and name metrics and labels that a running server has."""
import json
import re
import time
import unittest

import bed
import kubernetes_validate
import promql_parser
import yaml

MANIFEST = bed.ROOT / "packaging" / "kubernetes" / "specextend.yaml"
BOARD = bed.ROOT / "packaging" / "grafana" / "specextend.json"
KUBERNETES = "1.30"  # the oldest version whose schemas must be met


class Manifest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.parts = list(yaml.safe_load_all(MANIFEST.read_text()))
        pod = next(p for p in cls.parts if p["kind"] == "Deployment")["spec"]["template"]["spec"]
        cls.pod, cls.container = pod, pod["containers"][0]

    def test_fits_the_schemas(self):
        self.assertEqual([p["kind"] for p in self.parts], ["Deployment", "Service", "PodDisruptionBudget"])
        for part in self.parts:
            kubernetes_validate.validate(part, KUBERNETES, strict=True)
        broken = json.loads(json.dumps(self.parts[0]))  # the check sees something
        broken["spec"]["template"]["spec"]["containers"][0]["livenessProb"] = {}
        with self.assertRaises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(broken, KUBERNETES, strict=True)

    def test_selectors_and_ports_agree(self):
        labels = self.parts[0]["spec"]["template"]["metadata"]["labels"]
        ports = {p["name"] for p in self.container["ports"]}
        for selector in (self.parts[0]["spec"]["selector"]["matchLabels"], self.parts[1]["spec"]["selector"],
                         self.parts[2]["spec"]["selector"]["matchLabels"]):
            self.assertLessEqual(selector.items(), labels.items())
        self.assertEqual({p["targetPort"] for p in self.parts[1]["spec"]["ports"]}, ports)
        volumes = {v["name"] for v in self.pod["volumes"]}
        self.assertEqual({m["name"] for m in self.container["volumeMounts"]}, volumes)

    def test_there_is_time_to_drain(self):
        drain = next(int(a.split("=")[1]) for a in self.container["args"] if a.startswith("--drain-seconds="))
        before = int(self.container["lifecycle"]["preStop"]["exec"]["command"][1])
        self.assertGreater(self.pod["terminationGracePeriodSeconds"], drain + before)

    def test_the_server_takes_the_flags_and_answers_the_probes(self):
        keys = bed.pathlib.Path(bed.FOLDER.name) / "keys.json"
        keys.write_text('[{"name": "ops", "key": "secret"}]')
        instead = {"--model": bed.TINY, "--host": "127.0.0.1", "--api-key-file": str(keys), "--ctx-size": "2000"}
        flags = []
        for argument in self.container["args"]:
            name, _, value = argument.partition("=")
            if name != "--port":  # a free one
                flags.append(f"{name}={instead.get(name, value)}" if value else name)
        server = bed.serving.Server(bed.PROGRAM, *flags)
        with server:
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):  # without a key, under the pod's address
                path = self.container[probe]["httpGet"]["path"]
                self.assertEqual(server.request("GET", path, headers={"Host": f"127.0.0.1:{server.port}"})[0], 200, probe)
            self.assertEqual(server.request("GET", "/metrics")[0], 401)


class Board(bed.Bed):
    flags = ("--spec", "suffix", "--parallel", "2", "--api-key", "two")

    @classmethod
    def start(cls):
        return bed.tiny_server(*cls.flags, key="one")

    def samples(self):
        """Names of samples with the names of their labels."""
        found = {}
        for line in self.server.get("/metrics").splitlines():
            if match := re.fullmatch(r"([a-zA-Z_:][\w:]*)\{(.*)\} \S+", line):
                found.setdefault(match[1], set()).update(re.findall(r'(\w+)="', match[2]))
        return found

    @staticmethod
    def parsed(expression):
        """The syntax tree, with Grafana's variables as Grafana writes them."""
        for name, text in {"$model": ".*", "$__rate_interval": "1m"}.items():
            expression = expression.replace(name, text)
        return promql_parser.parse(expression)

    @staticmethod
    def named(tree):
        """The metrics of an expression, and the labels that it selects or groups by."""
        metrics, labels = set(), set()

        def visit(node):
            if isinstance(node, promql_parser.VectorSelector):
                metrics.add(node.name)
                labels.update(matcher.name for matcher in node.matchers.matchers)
            elif isinstance(node, promql_parser.AggregateExpr) and node.modifier:
                labels.update(node.modifier.labels)

        promql_parser.walk(tree, visit)
        return metrics, labels

    def test_every_metric_and_label_is_there(self):
        self.server.post("/v1/completions", {"prompt": "aaaa aaaa aaaa", "max_tokens": 20})
        time.sleep(0.1)
        board, samples = json.loads(BOARD.read_text()), self.samples()
        expressions = [t["expr"] for panel in board["panels"] for t in panel["targets"]]
        self.assertGreater(len(expressions), 15)
        for expression in expressions:
            metrics, labels = self.named(self.parsed(expression))
            self.assertTrue(metrics, expression)
            for metric in metrics:
                self.assertIn(metric, samples, expression)
                self.assertLessEqual(labels - {"instance"}, samples[metric], expression)  # Prometheus adds that one
        for variable in board["templating"]["list"]:
            if variable["type"] == "query":
                metric, label = re.fullmatch(r"label_values\((\S+), (\w+)\)", variable["query"]["query"]).groups()
                self.assertIn(label, samples[metric])

    def test_the_parser_sees_what_prometheus_would_reject(self):
        for broken in ("sum(x", "rate(x)", 'x{a=~"("}', "rate(x[$interval])", "histogram_quantile(rate(x[1m]))",
                       "sums(x)", "sum by (a (x)"):
            with self.assertRaises(ValueError, msg=broken):
                self.parsed(broken)
        tree = self.parsed('sum by (a, b) (rate(x:y{c=~"$model"}[$__rate_interval])) / z')
        self.assertEqual(self.named(tree), ({"x:y", "z"}, {"a", "b", "c"}))

    def test_panels_do_not_overlap(self):
        cells = set()
        for panel in json.loads(BOARD.read_text())["panels"]:
            at = panel["gridPos"]
            for cell in [(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])]:
                self.assertNotIn(cell, cells, panel["title"])
                cells.add(cell)


if __name__ == "__main__":
    bed.main()
