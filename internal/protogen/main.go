// Command protogen makes the Go code of the protobuf files in api: it compiles
// them in process, so that no protoc is needed, and runs the generators that
// go.mod pins as tools. Run it from the repository's root.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/bufbuild/protocompile"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

const module = "github.com/canopyfs/canopy"

// generators maps each pinned tool to its parameters.
var generators = []struct{ tool, parameters string }{
	{"google.golang.org/protobuf/cmd/protoc-gen-go", "module=" + module},
	{"google.golang.org/grpc/cmd/protoc-gen-go-grpc", "module=" + module},
	{"github.com/planetscale/vtprotobuf/cmd/protoc-gen-go-vtproto", "module=" + module + ",features=marshal+unmarshal+size"},
}

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	names, err := filepath.Glob("api/canopy/v1/*.proto")
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return fmt.Errorf("no .proto file below api: run it from the repository's root")
	}
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{}),
		SourceInfoMode: protocompile.SourceInfoStandard,
	}
	files, err := compiler.Compile(ctx, names...)
	if err != nil {
		return err
	}
	request := &pluginpb.CodeGeneratorRequest{FileToGenerate: names}
	seen := map[string]bool{}
	for _, f := range files {
		appendFile(request, seen, f)
	}
	for _, g := range generators {
		request.Parameter = proto.String(g.parameters)
		if err := generate(ctx, g.tool, request); err != nil {
			return fmt.Errorf("%s: %w", g.tool, err)
		}
	}
	return nil
}

// appendFile adds f behind all that it imports.
func appendFile(request *pluginpb.CodeGeneratorRequest, seen map[string]bool, f protoreflect.FileDescriptor) {
	if seen[f.Path()] {
		return
	}
	seen[f.Path()] = true
	for i := range f.Imports().Len() {
		appendFile(request, seen, f.Imports().Get(i).FileDescriptor)
	}
	var d *descriptorpb.FileDescriptorProto
	if r, ok := f.(interface {
		FileDescriptorProto() *descriptorpb.FileDescriptorProto
	}); ok {
		d = r.FileDescriptorProto()
	} else {
		d = protodesc.ToFileDescriptorProto(f)
	}
	request.ProtoFile = append(request.ProtoFile, d)
}

func generate(ctx context.Context, tool string, request *pluginpb.CodeGeneratorRequest) error {
	in, err := proto.Marshal(request)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "tool", tool)
	cmd.Stdin = bytes.NewReader(in)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return err
	}
	var response pluginpb.CodeGeneratorResponse
	if err := proto.Unmarshal(out, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return fmt.Errorf("%s", response.GetError())
	}
	for _, f := range response.File {
		name := filepath.FromSlash(strings.TrimPrefix(f.GetName(), "/"))
		if err := os.WriteFile(name, []byte(f.GetContent()), 0o644); err != nil {
			return err
		}
	}
	return nil
}
