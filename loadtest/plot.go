package loadtest

import (
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

const (
	plotWidth  = 26 * vg.Centimeter
	plotHeight = 20 * vg.Centimeter
)

// PlotFormat returns an error if the file's name has no ending that WritePlot
// knows.
func PlotFormat(file string) error {
	switch strings.ToLower(filepath.Ext(file)) {
	case ".svg", ".png":
		return nil
	}
	return fmt.Errorf("--plot %s: want a name that ends in .svg or .png", file)
}

// WritePlot draws the series: operations per second above, latency by
// quantile below, both on a logarithmic scale.
func (r *Report) WritePlot(file string) error {
	if err := PlotFormat(file); err != nil {
		return err
	}
	rates, err := r.ratePlot()
	if err != nil {
		return err
	}
	latency, err := r.latencyPlot()
	if err != nil {
		return err
	}
	return WritePlots(file, []*plot.Plot{rates, latency})
}

// WritePlots draws plots below each other.
func WritePlots(file string, plots []*plot.Plot) error {
	if err := PlotFormat(file); err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return fmt.Errorf("--plot: %w", err)
	}
	rows := make([][]*plot.Plot, len(plots))
	for i, p := range plots {
		rows[i] = []*plot.Plot{p}
	}
	tiles := func(c vg.CanvasSizer) {
		parts := plot.Align(rows, draw.Tiles{Rows: len(rows), Cols: 1, PadY: vg.Centimeter, PadTop: vg.Points(6), PadRight: vg.Points(6)}, draw.New(c))
		for i, p := range plots {
			p.Draw(parts[i][0])
		}
	}
	if strings.EqualFold(filepath.Ext(file), ".svg") {
		c := vgsvg.New(plotWidth, plotHeight)
		tiles(c)
		_, err = c.WriteTo(out)
	} else {
		c := vgimg.New(plotWidth, plotHeight)
		tiles(c)
		_, err = vgimg.PngCanvas{Canvas: c}.WriteTo(out)
	}
	if e := out.Close(); err == nil {
		err = e
	}
	return err
}

var plotColors = []color.Color{
	color.RGBA{R: 0x1b, G: 0x7f, B: 0x5c, A: 0xff}, color.RGBA{R: 0xb0, G: 0xb0, B: 0xb0, A: 0xff},
	color.RGBA{R: 0xd9, G: 0x7b, B: 0x29, A: 0xff}, color.RGBA{R: 0x4a, G: 0x6f, B: 0xa5, A: 0xff},
	color.RGBA{R: 0xa6, G: 0x3d, B: 0x57, A: 0xff},
}

// PlotColor returns the color of line or bar i.
func PlotColor(i int) color.Color { return plotColors[i%len(plotColors)] }

func (r *Report) labels() (labels []string, position map[string]int) {
	position = map[string]int{}
	for _, s := range r.Series {
		for _, p := range s.Phases {
			l := p.Dirs + "\n" + p.Phase
			if _, ok := position[l]; !ok {
				position[l] = len(labels)
				labels = append(labels, l)
			}
		}
	}
	return labels, position
}

// logBars is a bar chart on a logarithmic axis, whose bars start at the
// axis' least value.
type logBars struct {
	values []float64
	x      []float64
	width  vg.Length
	offset vg.Length
	color  color.Color
}

// Plot draws the bars.
func (b *logBars) Plot(c draw.Canvas, p *plot.Plot) {
	tx, ty := p.Transforms(&c)
	for i, v := range b.values {
		x := tx(b.x[i]) + b.offset
		left, right, low, high := x-b.width/2, x+b.width/2, ty(p.Y.Min), ty(v)
		c.FillPolygon(b.color, []vg.Point{{X: left, Y: low}, {X: left, Y: high}, {X: right, Y: high}, {X: right, Y: low}})
	}
}

// Thumbnail draws a sample for the legend.
func (b *logBars) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(b.color, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Min.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Min.Y}})
}

// LogAxis makes the vertical axis logarithmic.
func LogAxis(p *plot.Plot, low, high float64) {
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min = math.Pow(10, math.Floor(math.Log10(max(low, 1e-3))))
	p.Y.Max = math.Pow(10, math.Ceil(math.Log10(max(high, p.Y.Min*10))))
}

func (r *Report) ratePlot() (*plot.Plot, error) {
	labels, position := r.labels()
	if len(labels) == 0 {
		return nil, fmt.Errorf("--plot: this report has no phases to draw")
	}
	p := plot.New()
	p.Title.Text = "loadtest " + r.Command + " on " + r.Machine.Host
	p.Y.Label.Text = "operations/s"
	width := plotWidth * 0.8 / vg.Length(len(labels)) / vg.Length(len(r.Series)+1)
	low, high := math.Inf(1), 0.0
	for i, s := range r.Series {
		b := &logBars{width: width, offset: width * (vg.Length(i) - vg.Length(len(r.Series)-1)/2), color: PlotColor(i)}
		for _, ph := range s.Phases {
			if ph.OpsPerSec <= 0 {
				continue
			}
			b.values = append(b.values, ph.OpsPerSec)
			b.x = append(b.x, float64(position[ph.Dirs+"\n"+ph.Phase]))
			low, high = min(low, ph.OpsPerSec), max(high, ph.OpsPerSec)
		}
		p.Add(b)
		p.Legend.Add(s.Name, b)
	}
	p.Legend.Top = true
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(labels))-0.5
	LogAxis(p, low, high)
	return p, nil
}

func (r *Report) latencyPlot() (*plot.Plot, error) {
	labels, position := r.labels()
	p := plot.New()
	p.Y.Label.Text = "latency, us: p50, p95, p99, p99.9"
	low, high := math.Inf(1), 0.0
	for i, s := range r.Series {
		shift := (float64(i) - float64(len(r.Series)-1)/2) * 0.25
		var dots plotter.XYs
		for _, ph := range s.Phases {
			x := float64(position[ph.Dirs+"\n"+ph.Phase]) + shift
			l := ph.Latency
			for _, v := range []float64{l.P50US, l.P95US, l.P99US, l.P999US} {
				if v > 0 {
					dots = append(dots, plotter.XY{X: x, Y: v})
					low, high = min(low, v), max(high, v)
				}
			}
		}
		if len(dots) == 0 {
			continue
		}
		points, err := plotter.NewScatter(dots)
		if err != nil {
			return nil, err
		}
		points.Shape, points.Color, points.Radius = draw.CircleGlyph{}, PlotColor(i), vg.Points(2.5)
		p.Add(points)
	}
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(labels))-0.5
	if high == 0 {
		low, high = 1, 10
	}
	LogAxis(p, low, high)
	return p, nil
}
