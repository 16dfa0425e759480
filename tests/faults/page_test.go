package faults

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"html/template"
	"math"
	"strings"
	"time"
)

// The page's measures, in pixels.
const (
	left, width = 130, 1150
	lane        = 18
	chart       = 120
)

// bar is a fault's time in a process's lane.
type bar struct {
	X, Y, W float64
	Color   string
	Title   string
}

type laneLine struct {
	Y    float64
	Name string
}

type tick struct {
	X     float64
	Label string
}

type dot struct {
	X, Y  float64
	Title string
}

// curve is one line of a chart.
type curve struct {
	Name, Color, Points string
}

type chartOf struct {
	Title  string
	Y      float64 // of its bottom
	Top    float64
	Max    string
	Curves []curve
}

// drawing is what the template draws.
type drawing struct {
	*summary
	Words                      string
	Width, Height, Left, Right float64
	Lanes                      []laneLine
	Bars                       []bar
	Charts                     []chartOf
	Ticks                      []tick
	Dots                       []dot
	LanesBottom                float64
}

// page is the report as one page that needs nothing else.
func (s *summary) page() ([]byte, error) {
	d := drawing{summary: s, Words: s.words(), Width: left + width + 20, Left: left, Right: left + width}
	total := max(s.Duration.Seconds(), 1)
	x := func(at time.Duration) float64 { return left + at.Seconds()/total*width }
	d.charts(total)
	y := 3*(chart+30) + 30.0
	at := map[string]float64{}
	for _, name := range s.Processes {
		at[name] = y
		d.Lanes = append(d.Lanes, laneLine{y, name})
		y += lane
	}
	at[""] = y
	d.Lanes = append(d.Lanes, laneLine{y, "group, transitions"})
	d.LanesBottom = y + lane
	d.Height = d.LanesBottom + 30
	for _, f := range s.Struck {
		hit := f.Hit
		if len(hit) == 0 {
			hit = []string{""}
		}
		title := fmt.Sprintf("%.1fs to %.1fs: %s", f.Begin.Seconds(), f.End.Seconds(), f.What)
		for _, name := range hit {
			d.Bars = append(d.Bars, bar{x(f.Begin), at[name] + 2, max(2, x(f.End)-x(f.Begin)), colorOf(f.Name), title})
		}
	}
	for _, m := range s.Marks {
		d.Dots = append(d.Dots, dot{x(m.At), at[""] + lane/2, fmt.Sprintf("%.0fs: %d × %s", m.At.Seconds(), m.N, m.What)})
	}
	step := math.Pow(10, math.Floor(math.Log10(total)))
	for total/step < 5 {
		step /= 2
	}
	for t := 0.0; t <= total; t += step {
		d.Ticks = append(d.Ticks, tick{left + t/total*width, fmt.Sprintf("%.0fs", t)})
	}
	var b bytes.Buffer
	err := pageTemplate.Execute(&b, &d)
	return b.Bytes(), err
}

// charts draws rates, outcomes and latencies by the second.
func (d *drawing) charts(total float64) {
	type series struct {
		name, color string
		of          func(*second) float64
	}
	ms := func(q float64) func(*second) float64 {
		return func(s *second) float64 { return float64(s.quantile(q)) / 1e6 }
	}
	log := func(f func(*second) float64) func(*second) float64 {
		return func(s *second) float64 { return math.Log10(1 + f(s)) }
	}
	for i, c := range []struct {
		title string
		unit  func(float64) string
		lines []series
	}{
		{"records a second", func(v float64) string { return fmt.Sprintf("%.0f", v) }, []series{
			{"acknowledged", "#1a7f37", func(s *second) float64 { return float64(s.Acked) }},
			{"given to the group", "#8250df", func(s *second) float64 { return float64(s.Grouped) }},
		}},
		{"failures a second", func(v float64) string { return fmt.Sprintf("%.0f", v) }, []series{
			{"not done", "#bf8700", func(s *second) float64 { return float64(s.Refused) }},
			{"unknown", "#cf222e", func(s *second) float64 { return float64(s.Unknown) }},
		}},
		{"latency of acknowledgements (logarithmic)", func(v float64) string { return fmt.Sprintf("%.0f ms", math.Pow(10, v)-1) }, []series{
			{"median", "#1a7f37", log(ms(0.5))},
			{"99 %", "#bf8700", log(ms(0.99))},
			{"slowest", "#cf222e", log(func(s *second) float64 { return float64(s.slowest) / 1e6 })},
		}},
	} {
		top := 30 + float64(i)*(chart+30)
		highest := 1e-9
		for _, l := range c.lines {
			for n := range d.Seconds {
				highest = max(highest, l.of(&d.Seconds[n]))
			}
		}
		one := chartOf{Title: c.title, Top: top, Y: top + chart, Max: c.unit(highest)}
		if highest < 1e-8 {
			one.Max = "0"
		}
		for _, l := range c.lines {
			var points strings.Builder
			for n := range d.Seconds {
				fmt.Fprintf(&points, "%.1f,%.1f ", left+(float64(n)+0.5)/total*width, one.Y-l.of(&d.Seconds[n])/highest*chart)
			}
			one.Curves = append(one.Curves, curve{l.name, l.color, points.String()})
		}
		d.Charts = append(d.Charts, one)
	}
}

// colorOf gives kinds of faults colours: by the first word.
func colorOf(name string) string {
	kind, _, _ := strings.Cut(name, " ")
	h := fnv.New32a()
	_, _ = h.Write([]byte(kind)) // it never fails
	return fmt.Sprintf("hsl(%d 65%% 50%%)", h.Sum32()%360)
}

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{
	"seconds": func(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) },
	"since": func(d time.Duration) string {
		if d < 0 {
			return "–"
		}
		return d.Round(10 * time.Millisecond).String()
	},
}).Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Leat: faults, seed {{.Seed}}</title>
<style>
body{font:14px/1.45 system-ui,sans-serif;margin:1.5rem;max-width:1340px;color:#1f2328;background:#fff}
pre{white-space:pre-wrap;background:#f6f8fa;padding:.8rem;border-radius:6px}
table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.15rem .6rem;border-bottom:1px solid #d1d9e0;text-align:left}
td.n{text-align:right;font-variant-numeric:tabular-nums}.zero{color:#cf222e}.bad{color:#cf222e;font-weight:600}.good{color:#1a7f37;font-weight:600}
svg text{font:11px system-ui,sans-serif;fill:#59636e}.side{display:flex;gap:2rem;flex-wrap:wrap}
</style></head><body>
<h1>Leat: faults, seed {{.Seed}}</h1>
{{if .Problems}}<p class="bad">{{len .Problems}} problems were found.</p><ul>{{range .Problems}}<li>{{.}}</li>{{end}}</ul>{{else}}<p class="good">Nothing was found.</p>{{end}}
<svg width="{{.Width}}" height="{{.Height}}" role="img" aria-label="Rates, latencies and faults over time">
{{range .Ticks}}<line x1="{{.X}}" x2="{{.X}}" y1="20" y2="{{$.LanesBottom}}" stroke="#eaeef2"/><text x="{{.X}}" y="{{$.Height}}" text-anchor="middle" dy="-8">{{.Label}}</text>{{end}}
{{range .Charts}}{{$c := .}}<text x="{{$.Left}}" y="{{.Top}}" dy="-6">{{.Title}}:{{range .Curves}} <tspan fill="{{.Color}}">■ {{.Name}}</tspan>{{end}}</text>
<line x1="{{$.Left}}" x2="{{$.Right}}" y1="{{.Y}}" y2="{{.Y}}" stroke="#8c959f"/><text x="{{$.Left}}" y="{{.Top}}" dx="-6" dy="8" text-anchor="end">{{.Max}}</text>
{{range .Curves}}<polyline fill="none" stroke="{{.Color}}" stroke-width="1.3" points="{{.Points}}"/>{{end}}{{end}}
{{range .Lanes}}<text x="{{$.Left}}" y="{{.Y}}" dx="-6" dy="13" text-anchor="end">{{.Name}}</text><line x1="{{$.Left}}" x2="{{$.Right}}" y1="{{.Y}}" y2="{{.Y}}" stroke="#eaeef2"/>{{end}}
{{range .Bars}}<rect x="{{.X}}" y="{{.Y}}" width="{{.W}}" height="14" rx="2" fill="{{.Color}}" fill-opacity="0.8"><title>{{.Title}}</title></rect>{{end}}
{{range .Dots}}<circle cx="{{.X}}" cy="{{.Y}}" r="3" fill="#0969da" fill-opacity="0.6"><title>{{.Title}}</title></circle>{{end}}
</svg>
<h2>In words</h2><pre>{{.Words}}</pre>
<h2>Counts</h2><div class="side">
{{define "counts"}}<table><tr><th>{{.Title}}</th><th></th></tr>{{range .List}}<tr{{if and .Needed (eq .N 0)}} class="zero"{{end}}><td>{{.Name}}</td><td class="n">{{.N}}</td></tr>{{end}}</table>{{end}}
{{range .Tables}}{{template "counts" .}}{{end}}
</div>
<h2>Faults</h2>
<table><tr><th>from, s</th><th>to, s</th><th>what</th><th>got on during</th><th>all got on after</th></tr>
{{range .Struck}}<tr><td class="n">{{seconds .Begin}}</td><td class="n">{{seconds .End}}</td><td>{{.What}}</td><td class="n">{{since .During}}</td><td class="n">{{since .After}}</td></tr>{{end}}</table>
</body></html>
`))

// table is one table of counts.
type table struct {
	Title string
	List  []count
}

// Tables are the counts, for the template.
func (s *summary) Tables() []table {
	return []table{{"transitions", s.Transitions}, {"faults", s.Faults}, {"failpoints, times fired", s.Failpoints}}
}
